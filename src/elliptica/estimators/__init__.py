"""Elliptic training for tables with scikit-learn's interface: estimators, preprocessing, files."""

from elliptica._utils import extras as _extras

try:
    from elliptica.estimators.classifier import EllipticClassifier as EllipticClassifier
    from elliptica.estimators.files import load as load
    from elliptica.estimators.files import read_notes as read_notes
    from elliptica.estimators.files import save as save
    from elliptica.estimators.graph import export as export
    from elliptica.estimators.graph import numeric_rows as numeric_rows
    from elliptica.estimators.preprocess import TablePreprocessor as TablePreprocessor
    from elliptica.estimators.regressor import EllipticRegressor as EllipticRegressor
except ModuleNotFoundError as error:
    raise _extras.missing_package("elliptica.estimators", "tables", error.name) from error
