"""Load the data sets of the paper's experiments, split their rows, and generate toy data.

Every loader raises FileNotFoundError if its files are missing, and ValueError if they are not the published
ones. The message says where they belong and where the originals come from.
"""

from elliptica.lab.data.catalogue import data_directories as data_directories
from elliptica.lab.data.catalogue import fetch as fetch
from elliptica.lab.data.catalogue import find_files as find_files
from elliptica.lab.data.catalogue import list_datasets as list_datasets
from elliptica.lab.data.groups import load_camelyon17 as load_camelyon17
from elliptica.lab.data.groups import load_celeba as load_celeba
from elliptica.lab.data.groups import load_waterbirds as load_waterbirds
from elliptica.lab.data.groups import load_waterbirds_features as load_waterbirds_features
from elliptica.lab.data.images import load_cifar10 as load_cifar10
from elliptica.lab.data.images import load_cifar100 as load_cifar100
from elliptica.lab.data.images import load_fashion_mnist as load_fashion_mnist
from elliptica.lab.data.images import load_medmnist as load_medmnist
from elliptica.lab.data.images import load_rcf_mnist as load_rcf_mnist
from elliptica.lab.data.images import load_rcf_mnist_features as load_rcf_mnist_features
from elliptica.lab.data.images import load_tiny_imagenet as load_tiny_imagenet
from elliptica.lab.data.splits import Dataset as Dataset
from elliptica.lab.data.splits import Split as Split
from elliptica.lab.data.splits import shuffle_labels as shuffle_labels
from elliptica.lab.data.tabular import load_airfoil as load_airfoil
from elliptica.lab.data.tabular import load_crime as load_crime
from elliptica.lab.data.tabular import load_no2 as load_no2
from elliptica.lab.data.tabular import load_skillcraft as load_skillcraft
from elliptica.lab.data.toy import two_moons as two_moons
