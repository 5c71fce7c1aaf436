"""Compare ordinary training, mixup and elliptic training on a table of your own; keep the better model."""

from elliptica._utils.extras import missing_package

try:
    import polars as _polars  # noqa: F401
    import sklearn as _sklearn  # noqa: F401
except ModuleNotFoundError as error:
    raise missing_package("elliptica.compare", "tables", error.name) from error

from elliptica._utils.statistics import corrected_interval
from elliptica.compare.comparison import Comparison, compare, fit_model
from elliptica.compare.markdown import markdown
from elliptica.compare.predict import predict_file
from elliptica.compare.table import TableError
from elliptica.report.content import Verdict

__all__ = [
    "Comparison",
    "TableError",
    "Verdict",
    "compare",
    "corrected_interval",
    "fit_model",
    "markdown",
    "predict_file",
]
