from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from pappus.errors import PappusError, RunError, UserError
from pappus.telemetry.checkpoint import CheckpointStore, load_state, save_state, verify


def _save(store: CheckpointStore, step: int, **metadata: object) -> Path:
    temporary = store.begin(step)
    save_state(temporary, "learner", {"step": step, "weights": torch.full((4,), float(step))})
    return store.commit(temporary, dict(metadata))


def _names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_committed_checkpoint_is_named_by_its_step_and_found_again(tmp_path):
    path = _save(CheckpointStore(tmp_path, keep_last=3), 12345, steps=12345)
    assert path.name == "step-000000012345"
    store = CheckpointStore(tmp_path)
    assert store.latest() == path and store.warnings == []
    assert load_state(path, "learner")["step"] == 12345


def test_the_manifest_says_what_and_by_whom(tmp_path):
    store = CheckpointStore(tmp_path, keep_last=3)
    manifest = verify(_save(store, 7, episodic_return=float("nan"), env="CartPole-v1"))
    assert (manifest["step"], manifest["format_version"]) == (7, 2)
    assert manifest["metadata"] == {"episodic_return": None, "env": "CartPole-v1"}
    assert set(manifest["versions"]) == {"python", "pappus", "torch", "numpy", "gymnasium"}
    assert set(manifest["files"]) == {"learner.json", "learner.safetensors"}


def test_an_empty_store_has_neither_latest_nor_best(tmp_path):
    store = CheckpointStore(tmp_path / "absent")
    assert store.latest() is None and store.best() is None
    assert not (tmp_path / "absent").exists(), "reading makes nothing"


def test_only_the_last_and_the_best_are_kept(tmp_path):
    store = CheckpointStore(tmp_path, keep_last=2)
    store.mark_best(_save(store, 1))
    for step in (2, 3, 4, 5):
        _save(store, step)
    assert _names(tmp_path) == ["best", "step-000000000001", "step-000000000004", "step-000000000005"]
    best = store.best()
    assert best is not None and best.name == "step-000000000001"
    store.mark_best(tmp_path / "step-000000000005")
    _save(store, 6)
    assert _names(tmp_path) == ["best", "step-000000000005", "step-000000000006"]


def test_a_checkpoint_of_the_same_step_replaces_the_one_before(tmp_path):
    store = CheckpointStore(tmp_path, keep_last=1)
    _save(store, 5, take=1)
    path = _save(store, 5, take=2)
    assert verify(path)["metadata"] == {"take": 2} and _names(tmp_path) == [path.name]


def test_latest_is_the_last_written_even_after_going_back(tmp_path):
    store = CheckpointStore(tmp_path, keep_last=2)
    for step in (100, 200, 300, 150):
        _save(store, step)
    latest = store.latest()
    assert latest is not None and latest.name.endswith("150")
    assert _names(tmp_path) == ["step-000000000150", "step-000000000300"]


def test_what_a_killed_run_left_half_written_is_removed(tmp_path):
    store = CheckpointStore(tmp_path, keep_last=3)
    good = _save(store, 1)
    save_state(store.begin(2), "learner", {"x": 1})
    assert len(_names(tmp_path)) == 2
    reopened = CheckpointStore(tmp_path, keep_last=3)
    assert reopened.latest() == good and _names(tmp_path) == [good.name]


def test_a_whole_checkpoint_that_only_lacks_its_name_is_rescued(tmp_path):
    path = _save(CheckpointStore(tmp_path, keep_last=1), 5)
    for prefix in (".partial-", ".replaced-"):
        path.rename(tmp_path / f"{prefix}{path.name}")
        assert CheckpointStore(tmp_path, keep_last=1).latest() == path


def test_a_reader_removes_nothing_and_cannot_write(tmp_path):
    CheckpointStore(tmp_path, keep_last=1).begin(3)
    reader = CheckpointStore(tmp_path)
    assert _names(tmp_path) == [".partial-step-000000000003"] and reader.latest() is None
    with pytest.raises(ValueError, match="only reads"):
        reader.begin(4)


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(("name", "damage", "why"), [
    ("learner.safetensors", _truncate, "bytes instead of"),
    ("learner.safetensors", _flip, "content changed"),
    ("learner.json", Path.unlink, "is missing"),
    ("checkpoint.json", _truncate, "checkpoint.json"),
])
def test_latest_skips_a_damaged_checkpoint_and_says_so(tmp_path, name, damage, why):
    store = CheckpointStore(tmp_path, keep_last=3)
    good, bad = _save(store, 1), _save(store, 2)
    damage(bad / name)
    with pytest.raises(RunError, match=r"is damaged, .*use an earlier checkpoint"):
        verify(bad)
    assert store.latest() == good
    assert len(store.warnings) == 1 and bad.name in store.warnings[0] and why in store.warnings[0]


def test_a_damaged_newer_checkpoint_never_outlives_a_good_one(tmp_path):
    store = CheckpointStore(tmp_path, keep_last=1)
    _truncate(_save(store, 300) / "checkpoint.json")
    path = _save(store, 200)
    assert store.latest() == path and _names(tmp_path) == [path.name]


def test_only_damaged_checkpoints_are_an_error_not_a_fresh_start(tmp_path):
    store = CheckpointStore(tmp_path, keep_last=3)
    _flip(_save(store, 1) / "learner.safetensors")
    with pytest.raises(RunError, match=r"no checkpoint in .* is usable: .*learner"):
        store.latest()


def test_a_damaged_best_is_none_with_a_warning(tmp_path):
    store = CheckpointStore(tmp_path, keep_last=3)
    path = _save(store, 1)
    store.mark_best(path)
    _flip(path / "learner.safetensors")
    assert store.best() is None and "content changed" in store.warnings[0]


def test_a_newer_format_is_refused_not_skipped(tmp_path):
    store = CheckpointStore(tmp_path, keep_last=3)
    _save(store, 1)
    manifest = _save(store, 2) / "checkpoint.json"
    content = json.loads(manifest.read_text()) | {"format_version": 9}
    manifest.write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"has format 9 .* reads up to 2; upgrade Pappus"):
        store.latest()


def test_foreign_and_missing_directories_are_named(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        verify(tmp_path / "step-7")
    foreign = tmp_path / "step-8"
    foreign.mkdir()
    with pytest.raises(UserError, match="is no checkpoint"):
        verify(foreign)
    (foreign / "checkpoint.json").write_text('{"model": "other"}')
    with pytest.raises(UserError, match="not written by Pappus"):
        verify(foreign)


def test_files_in_folders_are_checked_too(tmp_path):
    store = CheckpointStore(tmp_path, keep_last=3)
    temporary = store.begin(1)
    (temporary / "replay").mkdir()
    (temporary / "replay" / "chunk").write_bytes(b"abc")
    path = store.commit(temporary, {})
    (path / "replay" / "chunk").write_bytes(b"abd")
    with pytest.raises(RunError, match="replay/chunk"):
        verify(path)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"\x00", b"../../elsewhere", b"/", b"step-1\nstep-2", b""])
def test_garbage_instead_of_the_best_is_none_with_a_warning(tmp_path, content):
    store = CheckpointStore(tmp_path, keep_last=3)
    path = _save(store, 1)
    (tmp_path / "best").write_bytes(content)
    assert store.best() is None and "best' names no checkpoint" in store.warnings[0]
    assert store.latest() == path and _save(store, 2)


@pytest.mark.parametrize("change", [
    {"metadata": {"steps": 9}}, {"metadata": 3}, {"files": {}}, {"versions": None}, {"sequence": 1e999}, {"step": "x"},
])
def test_an_altered_manifest_is_damage(tmp_path, change):
    store = CheckpointStore(tmp_path, keep_last=3)
    good, bad = _save(store, 1), _save(store, 2)
    content = json.loads((bad / "checkpoint.json").read_text())
    (bad / "checkpoint.json").write_text(json.dumps(content | change))
    assert store.latest() == good and "content changed since it was written" in store.warnings[0]


@pytest.mark.parametrize("change", [
    {"metadata": 3}, {"files": 3}, {"files": {"/etc/hostname": {"bytes": 1, "sha256": ""}}}, {"files": {"\0": {}}},
    {"format_version": "x"}, {"format_version": 99, "versions": 3},
])
def test_a_forged_manifest_is_a_sentence(tmp_path, change):
    store = CheckpointStore(tmp_path, keep_last=3)
    path = _save(store, 1)
    content = json.loads((path / "checkpoint.json").read_text()) | change
    del content["sha256"]
    (path / "checkpoint.json").write_text(json.dumps(content))
    with pytest.raises(PappusError):
        store.latest()


def test_a_manifest_of_brackets_is_damage(tmp_path):
    path = _save(CheckpointStore(tmp_path, keep_last=3), 1)
    (path / "checkpoint.json").write_text("[" * 100_000)
    with pytest.raises(PappusError, match="is damaged"):
        verify(path)
