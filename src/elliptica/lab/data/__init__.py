"""Load the data sets of the paper's experiments, split their rows, and generate toy data.

Every loader raises FileNotFoundError if its files are missing, and ValueError if they are not the published
ones. The message says where they belong and where the originals come from.
"""

from elliptica.lab.data.catalogue import Listing, data_directories, fetch, find_files, list_datasets
from elliptica.lab.data.groups import (
    ImageFiles,
    load_camelyon17,
    load_celeba,
    load_waterbirds,
    load_waterbirds_features,
)
from elliptica.lab.data.images import (
    MEDMNIST,
    load_cifar10,
    load_cifar100,
    load_fashion_mnist,
    load_medmnist,
    load_rcf_mnist,
    load_rcf_mnist_features,
    load_tiny_imagenet,
)
from elliptica.lab.data.splits import (
    Dataset,
    NoisyLabels,
    PerBatchShuffle,
    Split,
    min_max_scale,
    scale_targets,
    shuffle_labels,
)
from elliptica.lab.data.tabular import load_airfoil, load_crime, load_no2, load_skillcraft
from elliptica.lab.data.toy import TwoMoons, half_discs, two_moons

__all__ = [
    "MEDMNIST",
    "Dataset",
    "ImageFiles",
    "Listing",
    "NoisyLabels",
    "PerBatchShuffle",
    "Split",
    "TwoMoons",
    "data_directories",
    "fetch",
    "find_files",
    "half_discs",
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
    "scale_targets",
    "shuffle_labels",
    "two_moons",
]
