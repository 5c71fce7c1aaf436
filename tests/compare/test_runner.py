"""Workers: progress, interruptions, threads, processes and Ray."""

import threading

import pytest
import torch
from threadpoolctl import threadpool_info

from elliptica.compare import Options, compare, fit_model
from elliptica.compare import runner as runner_module
from elliptica.compare.comparison import Session


def test_progress_grows_to_one(flowers, tiny):
    told = []
    compare(flowers, "kind", listen=lambda *each: told.append(each), methods=["elliptic", "trees"], **tiny)
    shares = [share for share, _ in told]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    words = {text for _, text in told}
    assert "boosted trees, fold 2 of 3" in words
    assert any(text.startswith("trials, folds 1, 2, 3") for text in words)
    assert any(text.startswith("final training") for text in words)
    assert len(shares) > 12


def test_threads_are_limited_and_restored(flowers, tiny, monkeypatch):
    seen = set()
    usual = runner_module.run_reference

    def spy(*arguments):
        counts = {info["num_threads"] for info in threadpool_info() if info["user_api"] == "openmp"}
        seen.add((threading.current_thread() is threading.main_thread(), *counts))
        return usual(*arguments)

    monkeypatch.setattr(runner_module, "run_reference", spy)
    before = [(info["filepath"], info["num_threads"]) for info in threadpool_info()]
    compare(flowers, "kind", methods=["trees"], **{**tiny, "jobs": 2, "trials": 1})
    assert seen == {(False, 1)}
    assert [(info["filepath"], info["num_threads"]) for info in threadpool_info()] == before


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["processes", "ray"])
def test_workers_of_other_kinds_give_the_same(found, flowers, tiny, workers):
    if workers == "ray":
        pytest.importorskip("ray")
    again = compare(
        flowers.drop("height"),
        "kind",
        group="site",
        methods=["elliptic", "linear"],
        **{**tiny, "jobs": 2, "workers": workers},
    )
    for record in again.records:
        (same,) = [r for r in found.records if r.key == record.key]
        assert record.predicted == pytest.approx(same.predicted, abs=1e-5)


def test_an_interruption_leaves_whole_folds(flowers, tiny, tmp_path, monkeypatch, steady):
    before = torch.get_num_threads()
    session = Session.open(
        flowers, "kind", Options(methods=["elliptic", "trees"], **{**tiny, "epochs": 30}), out=tmp_path
    )
    monkeypatch.setattr(runner_module, "_STACK_SECONDS", 0.0)  # one fold at a time

    def interrupt(share, words):
        if words.startswith("trials, fold 2"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        session.run(interrupt)
    assert torch.get_num_threads() == before
    part = session.result()
    assert not part.complete
    assert part.finished == [(0, 0)]
    assert set(part.predictions.fold[0]) == {0, -1}
    assert part.scores["trees"]["accuracy"] > 0
    assert part.verdict.text
    assert part.table()["method"].to_list() == ["erm", "elliptic", "trees", "constant"]
    fit_model(part)
    session.close()
    again = Session.open(
        flowers, "kind", Options(methods=["elliptic", "trees"], **{**tiny, "epochs": 30}), out=tmp_path
    )
    assert again.estimate < session.estimate
    again.run()
    assert again.result().complete
