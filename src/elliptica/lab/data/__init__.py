"""Data sets of the paper's experiments: where files are, how rows are split, and toy data."""

from elliptica.lab.data.catalogue import Listing as Listing
from elliptica.lab.data.catalogue import fetch as fetch
from elliptica.lab.data.catalogue import list_datasets as list_datasets
from elliptica.lab.data.cifar import load_cifar10 as load_cifar10
from elliptica.lab.data.cifar import load_cifar100 as load_cifar100
from elliptica.lab.data.fashion import load_fashion_mnist as load_fashion_mnist
from elliptica.lab.data.fashion import load_rcf_mnist as load_rcf_mnist
from elliptica.lab.data.files import data_directories as data_directories
from elliptica.lab.data.files import find_file as find_file
from elliptica.lab.data.files import verify_checksum as verify_checksum
from elliptica.lab.data.files import verify_sha256 as verify_sha256
from elliptica.lab.data.groups import load_camelyon17 as load_camelyon17
from elliptica.lab.data.groups import load_celeba as load_celeba
from elliptica.lab.data.groups import load_waterbirds as load_waterbirds
from elliptica.lab.data.groups import load_waterbirds_features as load_waterbirds_features
from elliptica.lab.data.image_files import ImageFiles as ImageFiles
from elliptica.lab.data.images import normalise as normalise
from elliptica.lab.data.medmnist import load_medmnist as load_medmnist
from elliptica.lab.data.noise import NoisyLabels as NoisyLabels
from elliptica.lab.data.noise import PerBatchShuffle as PerBatchShuffle
from elliptica.lab.data.noise import shuffle_labels as shuffle_labels
from elliptica.lab.data.splits import Dataset as Dataset
from elliptica.lab.data.splits import Split as Split
from elliptica.lab.data.splits import min_max_scale as min_max_scale
from elliptica.lab.data.tabular import load_airfoil as load_airfoil
from elliptica.lab.data.tabular import load_crime as load_crime
from elliptica.lab.data.tabular import load_no2 as load_no2
from elliptica.lab.data.tabular import load_skillcraft as load_skillcraft
from elliptica.lab.data.tiny_imagenet import load_tiny_imagenet as load_tiny_imagenet
from elliptica.lab.data.toy import TwoMoons as TwoMoons
from elliptica.lab.data.toy import distance_to_moons as distance_to_moons
from elliptica.lab.data.toy import two_moons as two_moons

__all__ = [
    "Dataset",
    "ImageFiles",
    "Listing",
    "NoisyLabels",
    "PerBatchShuffle",
    "Split",
    "TwoMoons",
    "data_directories",
    "distance_to_moons",
    "fetch",
    "find_file",
    "list_datasets",
    "load_airfoil",
    "load_camelyon17",
    "load_celeba",
    "load_cifar10",
    "load_cifar100",
    "load_crime",
    "load_fashion_mnist",
    "load_medmnist",
    "load_no2",
    "load_rcf_mnist",
    "load_skillcraft",
    "load_tiny_imagenet",
    "load_waterbirds",
    "load_waterbirds_features",
    "min_max_scale",
    "normalise",
    "shuffle_labels",
    "two_moons",
    "verify_checksum",
    "verify_sha256",
]
