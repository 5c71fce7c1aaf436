"""Load the data sets of the paper's experiments, split their rows, and generate toy data.

Every loader raises FileNotFoundError if its files are missing, and ValueError if they are not the published
ones. The message lists the searched places and the source of the originals.
"""

from elliptica.lab.data.catalogue import Listing, fetch, list_datasets
from elliptica.lab.data.cifar import load_cifar10, load_cifar100
from elliptica.lab.data.fashion import load_fashion_mnist, load_rcf_mnist
from elliptica.lab.data.files import data_directories, find_file, verify_checksum
from elliptica.lab.data.groups import load_camelyon17, load_celeba, load_waterbirds, load_waterbirds_features
from elliptica.lab.data.image_files import ImageFiles
from elliptica.lab.data.images import normalise
from elliptica.lab.data.medmnist import load_medmnist
from elliptica.lab.data.noise import NoisyLabels, PerBatchShuffle, shuffle_labels
from elliptica.lab.data.rcf_features import load_rcf_mnist_features
from elliptica.lab.data.splits import Dataset, Split, min_max_scale
from elliptica.lab.data.tabular import load_airfoil, load_crime, load_no2, load_skillcraft
from elliptica.lab.data.tiny_imagenet import load_tiny_imagenet
from elliptica.lab.data.toy import TwoMoons, distance_to_moons, two_moons

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
    "load_rcf_mnist_features",
    "load_skillcraft",
    "load_tiny_imagenet",
    "load_waterbirds",
    "load_waterbirds_features",
    "min_max_scale",
    "normalise",
    "shuffle_labels",
    "two_moons",
    "verify_checksum",
]
