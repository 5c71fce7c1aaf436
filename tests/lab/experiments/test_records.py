"""Files of records: kills, other processes and damage lose nothing, and old draws are not taken for new."""

import gzip
import json
import multiprocessing
import os
import signal
import time

import pytest

from elliptica.lab.experiments import records as module
from elliptica.lab.experiments.records import (
    DRAWS,
    Record,
    Records,
    is_recorded,
    read_records,
    records_of,
    run_hash,
)
from record_cases import make_record, make_run

FORK = multiprocessing.get_context("fork")


def test_records_are_read_as_they_were_written(tmp_path):
    records = [
        make_record("erm", 0, 0.1, by_class={"0": 0.5}, auroc=None),
        make_record("erm", 1, 1 / 3, curves={"validation": [1e-300, 1.0]}),
        make_record("elliptic", 0, 0.7, rows={"train": {"rows": 3}}, right={"test": {"0": [1, 2]}}),
    ]
    for record in records:
        records_of(tmp_path, "own").append(record)
    assert Records(tmp_path / "own.jsonl.gz").read() == records
    lines = gzip.decompress((tmp_path / "own.jsonl.gz").read_bytes()).splitlines()
    assert [json.loads(line)["draws"] for line in lines] == [DRAWS] * 3
    assert records_of(tmp_path, "own").find(records[1].hash) == records[1]
    assert Records(tmp_path / "none.jsonl.gz").read() == []
    (tmp_path / "own.jsonl.gz").rename(tmp_path / "away")
    assert records_of(tmp_path, "own").find(records[1].hash) is None
    (tmp_path / "away").rename(tmp_path / "own.jsonl.gz")
    wanted = [make_run("elliptic", 0), make_run("elliptic", 1), make_run("erm", 1)]
    assert read_records(tmp_path, wanted) == [records[2], records[1]]


def test_a_run_is_found_with_its_draws_only(tmp_path):
    old = make_record("erm", 0, 0.1, draws=DRAWS - 1)
    records_of(tmp_path, "own").append(old)
    assert not is_recorded(tmp_path, old.run)
    assert read_records(tmp_path, [old.run]) == [old]  # to be shown, with a mark
    new = make_record("erm", 0, 0.2)
    records_of(tmp_path, "own").append(new)
    assert is_recorded(tmp_path, new.run)
    assert not is_recorded(tmp_path, new.run, with_epochs=True)
    assert records_of(tmp_path, "own").read() == [new]  # in place of the old one
    changes = [{"seed": 1}, {"settings": {"sigma": 1}}, {"training": {"epochs": 4}}, {"table": "b"}]
    hashes = {run_hash(new.run.model_copy(update=change)) for change in ({}, *changes)}
    assert len(hashes | {old.hash}) == len(changes) + 2


def append_many(path, row, done):
    for seed in range(10_000):
        Records(path).append(make_record(row, seed, 0.5))
        done.send_bytes(str(seed).encode())


def last_of(pipe):
    seed = -1
    while pipe.poll():
        seed = int(pipe.recv_bytes())
    return seed


@pytest.mark.slow
def test_killed_processes_that_share_a_file_lose_nothing(tmp_path):
    path = tmp_path / "own.jsonl.gz"
    for attempt in range(10):
        pipes = [FORK.Pipe(duplex=False) for _ in range(2)]
        names = [f"{attempt} {i}" for i in range(2)]
        workers = [
            FORK.Process(target=append_many, args=(path, row, done))
            for row, (_, done) in zip(names, pipes, strict=True)
        ]
        for worker in workers:
            worker.start()
        while not all(pipe.poll() for pipe, _ in pipes):
            time.sleep(0.001)
        time.sleep(0.003 * attempt)
        for worker in workers:
            os.kill(worker.pid, signal.SIGKILL)
            worker.join()
        kept = {(record.run.row, record.run.seed) for record in Records(path).read()}
        for row, (pipe, _) in zip(names, pipes, strict=True):
            assert {(row, seed) for seed in range(last_of(pipe) + 1)} <= kept


def test_a_full_disk_leaves_the_records_as_they_were(tmp_path, monkeypatch):
    records_of(tmp_path, "own").append(make_record("erm", 0, 0.5))
    before = (tmp_path / "own.jsonl.gz").read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space"):
        records_of(tmp_path, "own").append(make_record("erm", 1, 0.5))
    assert (tmp_path / "own.jsonl.gz").read_bytes() == before


def spoiled(content, **changes):
    """The bytes of a file with one record that has other entries; None takes one away."""
    line = json.loads(gzip.decompress(content)) | changes
    return gzip.compress(json.dumps({k: v for k, v in line.items() if v is not None}).encode())


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: b"",
        lambda content: b"no gzip",
        lambda content: content[:40] + b"\0" + content[41:],
        lambda content: gzip.compress(b"[" * 100_000),
        lambda content: gzip.compress(b"[]\n"),
        lambda content: gzip.compress(b'{"run": 1\n'),
        lambda content: gzip.compress(b"\xff\xfe\n"),
        lambda content: spoiled(content, draws=None),
        lambda content: spoiled(content, metrics=None),
        lambda content: spoiled(content, metrics={"test": {"average": float("nan")}}),
        lambda content: spoiled(content, metrics={"test": {"average": "<b>"}}),
        lambda content: spoiled(content, cost={"evaluations": 1, "seconds": 1, "epochs": 0}),
        lambda content: spoiled(content, epoch=-1),
        lambda content: spoiled(content, unknown=1),
    ],
)
def test_a_damaged_file_is_named_and_left_alone(tmp_path, damage):
    path = tmp_path / "own.jsonl.gz"
    Records(path).append(make_record("erm", 0, 0.5))
    path.write_bytes(damage(path.read_bytes()))
    before = path.read_bytes()
    for call in (Records(path).read, lambda: Records(path).append(make_record("erm", 1, 0.5))):
        with pytest.raises(ValueError, match=r"own\.jsonl\.gz"):
            call()
    assert path.read_bytes() == before


def test_settings_with_other_keys_are_other_runs(tmp_path):
    records = Records(tmp_path / "own.jsonl.gz")
    one, real = (make_run("erm", 0).model_copy(update={"settings": {"rate": rate}}) for rate in (1, 1.0))
    for run in (one, real, one):
        records.append(make_record("erm", 0, 0.5, run=run))
    assert {record.hash for record in records.read()} == {run_hash(one), run_hash(real)}


def test_a_diverged_run_is_no_record():
    with pytest.raises(ValueError, match="average"):
        make_record("erm", 0, float("inf"))
    assert isinstance(make_record("erm", 0, 0.5, curves={"validation": [float("inf")]}), Record)
