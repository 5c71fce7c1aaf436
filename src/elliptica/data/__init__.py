"""Data sets of the paper's experiments: where files are, how rows are split, and toy data."""

from elliptica.data.domains import load_crime as load_crime
from elliptica.data.domains import load_skillcraft as load_skillcraft
from elliptica.data.features import load_waterbirds_features as load_waterbirds_features
from elliptica.data.location import data_directories as data_directories
from elliptica.data.location import find_file as find_file
from elliptica.data.location import verify_sha256 as verify_sha256
from elliptica.data.splits import Dataset as Dataset
from elliptica.data.splits import Split as Split
from elliptica.data.splits import min_max_scale as min_max_scale
from elliptica.data.tabular import load_airfoil as load_airfoil
from elliptica.data.tabular import load_no2 as load_no2
from elliptica.data.toy import TwoMoons as TwoMoons
from elliptica.data.toy import distance_to_moons as distance_to_moons
from elliptica.data.toy import two_moons as two_moons

__all__ = [
    "Dataset",
    "Split",
    "TwoMoons",
    "data_directories",
    "distance_to_moons",
    "find_file",
    "load_airfoil",
    "load_crime",
    "load_no2",
    "load_skillcraft",
    "load_waterbirds_features",
    "min_max_scale",
    "two_moons",
    "verify_sha256",
]
