"""The cache: built once, whole or not at all, with a clear reason where it cannot be built."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.fakecuda import build, cache
from tests.fakecuda.cache import BuildError


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "cuplace-fakecuda"


def test_something_is_made_once_by_all_who_want_it(own_cache: Path) -> None:
    made = []

    def make(work: Path) -> None:
        made.append(work)
        (work / "part").write_text("1")
        assert not (own_cache / "thing").exists()  # nobody sees it half full

    threads = [threading.Thread(target=cache.once, args=("thing", make)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert (own_cache / "thing" / "part").read_text() == "1"


def test_what_failed_is_made_again(own_cache: Path) -> None:
    def fail(work: Path) -> None:
        (work / "leftover").touch()
        raise BuildError("no compiler")

    with pytest.raises(BuildError, match="no compiler"):
        cache.once("thing", fail)
    assert not (own_cache / "thing").exists()
    path = cache.once("thing", lambda work: (work / "part").touch())
    assert [p.name for p in path.iterdir()] == ["part"]


def test_a_missing_command_and_a_failing_one_say_so() -> None:
    with pytest.raises(BuildError, match="no-such-compiler is not installed"):
        cache.run(["no-such-compiler"])
    with pytest.raises(BuildError, match=r"cat .*failed:\n.*No such file"):
        cache.run(["cat", "/no/such/file"])


def test_a_package_of_another_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "CUPY_VERSION", "99.0")
    reason = build.missing()
    assert reason is not None
    assert reason.startswith("the fake CUDA needs cupy-cuda12x==99.0")


def test_the_keys_change_with_what_is_compiled() -> None:
    assert len({build.content_key(), build.shim_key()}) == 2
