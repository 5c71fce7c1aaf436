"""Workers: progress, interruptions, threads, processes and Ray."""

import subprocess
import sys
import textwrap
import threading
import time

import pytest
import torch
from threadpoolctl import threadpool_info

from elliptica.tables import Options, compare, fit_model
from elliptica.tables import runner as runner_module
from elliptica.tables.comparison import Session
from processes import is_running


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


@pytest.mark.slow
def test_an_interruption_waits_for_the_other_threads(flowers, tiny, monkeypatch):
    """Python aborts if it exits while a thread is inside torch."""
    both, at_work, heard, ended = threading.Barrier(2, timeout=30), [], [], []

    def slow(problem, task, plan, n_folds, report, deadline):
        at_work.append(task)
        if len(at_work) > 2:
            raise AssertionError("no task begins after an interruption")
        both.wait()
        try:
            report(0.5, "half")
            time.sleep(1.5)  # the other one is interrupted meanwhile
            report(0.6, "more")
        finally:
            ended.append(task)
        return []

    def interrupt(*_):
        heard.append(None)
        if len(heard) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(runner_module, "run_task", slow)
    with pytest.raises(KeyboardInterrupt):
        compare(flowers, "kind", listen=interrupt, methods=["trees"], **{**tiny, "jobs": 2})
    assert len(ended) == 2


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


@pytest.mark.slow
def test_worker_processes_end_with_a_parent_that_is_killed():
    code = """
        import os, time
        from joblib import Parallel, delayed
        from elliptica.tables import runner

        def sleep(*_):
            print(os.getpid(), flush=True)
            time.sleep(1000)

        def work(parent):
            runner.run_task = sleep
            runner._run_numbered(parent, 0, None, None, None, 1, None)

        Parallel(2, backend="loky")(delayed(work)(os.getpid()) for _ in range(2))
    """
    killed = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True
    )
    children = [int(killed.stdout.readline()) for _ in range(2)]
    killed.kill()
    killed.wait()
    deadline = time.monotonic() + 60
    while any(is_running(child) for child in children):
        assert time.monotonic() < deadline
        time.sleep(0.05)
