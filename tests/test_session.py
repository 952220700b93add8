"""The session folder: kept whole whatever happens, used by one xlocal at a time, read with one clear line when odd."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from xlocal.tracer.errors import ScriptError, SessionError, UsageError
from xlocal.tracer.scope import Scope, scope_root

from xlocal.session import FILE, Session, digests, replacing, settled
from xlocal.settings import Settings, load_settings

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="signals and limits of POSIX")


def a_session(**values) -> Session:
    return dataclasses.replace(Session(commands=("buggy.py", "-m pkg x"), python="python3", cwd="/"), **values)


def keep(folder: Path, *, note: str = "first") -> None:
    with replacing(folder) as fresh:
        a_session(issue=note).save(fresh)


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.parent.iterdir() if path.name.startswith(f".{folder.name}"))


def test_a_session_comes_back_as_it_was_saved(tmp_path):
    (tmp_path / "pkg").mkdir()
    saved = a_session(
        env=("A", "B"), issue="é\n\x00", scope=Scope((scope_root(tmp_path / "pkg"),)), sources={"m.py": "ab"}
    )
    saved.save(tmp_path)
    assert Session.load(tmp_path) == saved


def test_replacing_makes_folders_and_hides_them_from_git(tmp_path):
    folder = tmp_path / "deep" / ".xlocal" / "latest"
    keep(folder)
    assert Session.load(folder).issue == "first"
    assert (folder.parent / ".gitignore").read_text() == "*\n"
    assert leftovers(folder) == []


def test_replacing_takes_the_place_of_the_former_session(tmp_path):
    folder = tmp_path / "s"
    keep(folder)
    (folder / "old").touch()
    keep(folder, note="second")
    assert Session.load(folder).issue == "second"
    assert sorted(path.name for path in folder.iterdir()) == [FILE]
    assert leftovers(folder) == []


@pytest.mark.parametrize("failure", [KeyboardInterrupt, ValueError, SystemExit])
def test_a_failure_leaves_the_former_session_and_no_litter(tmp_path, failure):
    folder = tmp_path / "s"
    keep(folder)
    with pytest.raises(failure), replacing(folder) as fresh:  # noqa: PT012 (the failure is the test)
        a_session(issue="half").save(fresh)
        raise failure
    assert Session.load(folder).issue == "first"
    assert leftovers(folder) == []


def test_what_a_failing_script_wrote_stays_until_the_next_run(tmp_path):
    folder = tmp_path / "s"
    keep(folder)
    with pytest.raises(ScriptError), replacing(folder) as fresh:  # noqa: PT012 (the failure is the test)
        (fresh / "stderr.txt").write_text("why")
        raise ScriptError(f"all it wrote is in {fresh / 'stderr.txt'}")
    assert (fresh / "stderr.txt").read_text() == "why"
    assert Session.load(folder).issue == "first"
    keep(folder, note="second")
    assert leftovers(folder) == []


def test_a_folder_that_is_no_session_is_never_replaced(tmp_path):
    precious = tmp_path / "src"
    precious.mkdir()
    (precious / "work.py").write_text("1")
    with pytest.raises(SessionError, match="is not an xlocal session"):
        keep(precious)
    (precious / FILE).write_text("{}")
    with pytest.raises(SessionError, match="choose another folder with --session"):
        keep(precious)
    assert (precious / "work.py").read_text() == "1"


def test_a_file_in_the_place_of_the_folder_is_left_alone(tmp_path):
    (tmp_path / "s").write_text("mine")
    with pytest.raises(SessionError):
        keep(tmp_path / "s")
    with pytest.raises(SessionError, match="cannot write the session"):
        keep(tmp_path / "s" / "below")
    assert (tmp_path / "s").read_text() == "mine"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is damaged"),
        ("[]", "is damaged"),
        ('{"format": "xlocal-session"', "is damaged"),
        ('{"format": "xlocal-session", "version": 1}', "is damaged"),
        ('{"format": "xlocal-session", "version": 2}', "written by a newer xlocal"),
        ('{"format": "other", "version": 1}', "is not an xlocal session"),
        ("[" * 100_000, "is damaged"),
    ],
)
def test_odd_session_files_are_named_in_one_line(tmp_path, content, message):
    (tmp_path / FILE).write_text(content)
    with pytest.raises(SessionError, match=message) as caught:
        Session.load(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_session_says_how_to_make_one(tmp_path):
    with pytest.raises(SessionError, match="xlocal trace BUGGY REFERENCE"):
        Session.load(tmp_path / "none")


def test_changed_and_missing_sources_are_seen(tmp_path):
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").touch()
    scope = Scope((scope_root(package),))
    for name in "abc":
        (package / f"{name}.py").write_text(name)
    session = a_session(scope=scope, sources=digests(scope, ["pkg/a.py", "pkg/b.py", "pkg/c.py", "pkg/absent.py"]))
    assert set(session.sources) == {"pkg/a.py", "pkg/b.py", "pkg/c.py"}
    assert session.changed_sources() == ()
    (package / "b.py").write_text("changed")
    (package / "c.py").unlink()
    assert session.changed_sources() == ("pkg/b.py", "pkg/c.py")


# --- two at once, killed, no room ---------------------------------------------------------------------------------------


def python(code: str, *arguments: object, **options) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


HOLD = """
    import sys, time
    from pathlib import Path
    from xlocal.session import replacing
    with replacing(Path(sys.argv[1])):
        print("held", flush=True)
        time.sleep(60)
"""


def test_the_second_of_two_at_once_is_refused_and_loses_nothing(tmp_path):
    folder = tmp_path / "s"
    keep(folder)
    holder = python(HOLD, folder)
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(SessionError, match=f"another xlocal is using this session .process {holder.pid},"):
            keep(folder, note="second")
        # Reading is allowed: the former session is whole.
        with settled(folder):
            assert Session.load(folder).issue == "first"
    finally:
        holder.kill()
        holder.communicate()
    # The lock of a dead process is taken over and what it left is cleared away.
    keep(folder, note="third")
    assert Session.load(folder).issue == "third"
    assert leftovers(folder) == []


@POSIX
def test_a_kill_between_the_two_renames_is_mended_by_the_next_reader(tmp_path):
    folder = tmp_path / "s"
    keep(folder)
    victim = python(
        """
        import os, signal, sys
        from pathlib import Path
        from xlocal.session import replacing
        rename = Path.rename
        def rename_and_die(self, target):
            rename(self, target)
            os.kill(os.getpid(), signal.SIGKILL)
        Path.rename = rename_and_die
        with replacing(Path(sys.argv[1])):
            pass
        """,
        folder,
    )
    victim.communicate()
    assert victim.returncode == -signal.SIGKILL
    assert not folder.exists()
    with settled(folder):
        assert Session.load(folder).issue == "first"
    assert leftovers(folder) == []


@POSIX
def test_a_disk_without_room_is_one_line_and_keeps_the_former_session(tmp_path):
    folder = tmp_path / "s"
    keep(folder)
    writer = python(
        """
        import resource, sys
        from pathlib import Path
        from xlocal.session import Session, replacing
        from xlocal.tracer.errors import SessionError
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        try:
            with replacing(Path(sys.argv[1])) as fresh:
                Session(commands=("x" * 10000,), python="", cwd="").save(fresh)
        except SessionError as error:
            print(error)
        """,
        folder,
    )
    said, trouble = writer.communicate()
    assert "cannot write the session: File too large; the former session is as it was" in said, trouble
    assert Session.load(folder).issue == "first"
    assert leftovers(folder) == []


@POSIX
def test_a_lock_that_cannot_be_written_is_one_line_and_leaves_nothing(tmp_path):
    writer = python(
        """
        import resource, signal, sys
        from pathlib import Path
        from xlocal.session import replacing
        from xlocal.tracer.errors import SessionError
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        try:
            with replacing(Path(sys.argv[1])):
                pass
        except SessionError as error:
            sys.exit(f"said: {error}")
        """,
        tmp_path / "s",
    )
    said = writer.communicate()[1].strip()
    assert said == f"said: {tmp_path / 's'}: cannot write the session: File too large"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_one_line(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(SessionError, match="cannot write the session"):
        keep(tmp_path / "s")


def test_a_session_replaced_while_it_is_read_is_refused(tmp_path):
    folder = tmp_path / "s"
    keep(folder)
    with pytest.raises(SessionError, match="replaced this session just now"), settled(folder):
        keep(folder, note="second")


def test_many_writers_leave_one_whole_session(tmp_path):
    folder = tmp_path / "s"
    code = """
        import sys
        from pathlib import Path
        from xlocal.session import Session, replacing
        from xlocal.tracer.errors import SessionError
        done = 0
        for number in range(40):
            try:
                with replacing(Path(sys.argv[1])) as fresh:
                    Session(commands=(sys.argv[2], str(number)), python="", cwd="").save(fresh)
                done += 1
            except SessionError as error:
                assert "another xlocal" in str(error), error
        print(done)
    """
    writers = [python(code, folder, name) for name in "abc"]
    results = [writer.communicate() for writer in writers]
    assert [trouble for _, trouble in results] == ["", "", ""]
    assert sum(int(said) for said, _ in results) > 0
    assert Session.load(folder).commands[0] in "abc"
    assert leftovers(folder) == []


# --- [tool.xlocal] ------------------------------------------------------------------------------------------------------


def settings(tmp_path: Path, text: str, *, below: str = "") -> Settings:
    (tmp_path / "pyproject.toml").write_text(text)
    start = tmp_path / below
    start.mkdir(parents=True, exist_ok=True)
    return load_settings(start)


def test_settings_come_from_the_nearest_file_and_paths_are_relative_to_it(tmp_path):
    (tmp_path / "src").mkdir()
    found = settings(
        tmp_path,
        """
        [tool.xlocal]
        scope = ["src", "werkzeug"]
        python = "venv/bin/python"
        cwd = "."
        env = {A = "1"}
        timeout = 5
        session = "out"
        repeat = 3
        ranker = "lexical"
        model = "some/model"
        top = 7
        backend = "setprofile"
        budget = 1.5
        """,
        below="a/b",
    )
    assert found == Settings(
        scope=(str(tmp_path / "src"), "werkzeug"),
        python=str(tmp_path / "venv/bin/python"),
        cwd=tmp_path,
        env={"A": "1"},
        timeout=5.0,
        session=tmp_path / "out",
        repeat=3,
        ranker="lexical",
        model="some/model",
        top=7,
        backend="setprofile",
        budget=1.5,
    )


@pytest.mark.parametrize("text", ["", "[tool.other]\nx = 1", "[tool.xlocal]"])
def test_a_file_without_settings_gives_the_defaults(tmp_path, text):
    assert settings(tmp_path, text) == Settings()


def test_the_name_of_an_interpreter_is_looked_up_later(tmp_path):
    assert settings(tmp_path, '[tool.xlocal]\npython = "python3.9"').python == "python3.9"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool.xlocal]\nscopes = []", "unknown key 'scopes'"),
        ('[tool.xlocal]\nscope = "src"', "scope must be a list of folders or packages"),
        ("[tool.xlocal]\nscope = [1]", "scope must be"),
        ("[tool.xlocal]\npython = 3", "python must be"),
        ("[tool.xlocal]\nenv = {A = 1}", "env must be a table of strings"),
        ("[tool.xlocal]\ntimeout = 0", "timeout must be"),
        ("[tool.xlocal]\ntimeout = nan", "timeout must be"),
        ("[tool.xlocal]\ntimeout = true", "timeout must be"),
        ("[tool.xlocal]\nrepeat = 1.5", "repeat must be a whole number above 0"),
        ('[tool.xlocal]\nranker = "best"', "ranker must be one of fused, "),
        ('[tool.xlocal]\nbackend = "magic"', "backend must be one of auto, "),
        ("[tool]\nxlocal = 1", "must be a table"),
        ("[tool.xlocal", "is not valid TOML"),
    ],
)
def test_wrong_settings_name_the_file_and_the_key(tmp_path, text, message):
    with pytest.raises(UsageError, match=message) as caught:
        settings(tmp_path, text)
    assert str(tmp_path / "pyproject.toml") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_session_json_is_readable_by_others(tmp_path):
    keep(tmp_path / "s")
    document = json.loads((tmp_path / "s" / FILE).read_text())
    assert (document["format"], document["version"]) == ("xlocal-session", 1)
    assert document["commands"] == ["buggy.py", "-m pkg x"]


def test_a_lock_file_without_a_holder_does_not_stand_in_the_way(tmp_path):
    (tmp_path / ".s.lock").write_text("99999 long ago\n")
    keep(tmp_path / "s")
    assert leftovers(tmp_path / "s") == []
