"""Elliptic training for tables with scikit-learn's interface: estimators, preprocessing, files, sampling."""

from elliptica._utils.extras import missing_package

try:
    import safetensors as _safetensors  # noqa: F401
    import sklearn as _sklearn  # noqa: F401
except ModuleNotFoundError as error:
    raise missing_package("elliptica.estimators", "tables", error.name) from error

from elliptica.estimators.classifier import EllipticClassifier as EllipticClassifier
from elliptica.estimators.files import load as load
from elliptica.estimators.files import read_notes as read_notes
from elliptica.estimators.files import save as save
from elliptica.estimators.oversample import BridgeOverSampler as BridgeOverSampler
from elliptica.estimators.preprocess import TablePreprocessor as TablePreprocessor
from elliptica.estimators.regressor import EllipticRegressor as EllipticRegressor

__all__ = [
    "BridgeOverSampler",
    "EllipticClassifier",
    "EllipticRegressor",
    "TablePreprocessor",
    "load",
    "read_notes",
    "save",
]
