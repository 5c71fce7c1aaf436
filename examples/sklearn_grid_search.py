"""Choose the method and the noise by cross-validation, as for any scikit-learn estimator."""

from sklearn.datasets import load_wine
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline

from elliptica.estimators import EllipticClassifier, TablePreprocessor

X, y = load_wine(return_X_y=True, as_frame=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, stratify=y, random_state=0)

pipeline = make_pipeline(
    TablePreprocessor(),
    EllipticClassifier(hidden=(32,), max_iter=15, learning_rate=0.01, random_state=0),
)
grid = [
    {"ellipticclassifier__method": ["erm", "mixup"]},
    {"ellipticclassifier__method": ["elliptic"], "ellipticclassifier__sigma": [0.05, 0.2]},
]
search = GridSearchCV(pipeline, grid, cv=3, scoring="neg_log_loss").fit(X_train, y_train)

for settings, score in zip(search.cv_results_["params"], search.cv_results_["mean_test_score"], strict=True):
    named = {name.removeprefix("ellipticclassifier__"): value for name, value in settings.items()}
    print(f"log loss {-score:.3f}  {named}")
print(f"accuracy of the best on held-out rows: {search.best_estimator_.score(X_test, y_test):.3f}")
