"""Generated secrets are private from their first byte and never change by themselves."""

from __future__ import annotations

import stat

from stack import credentials
from stack.layout import Places


def test_files_are_0600_and_folders_0700(here: Places):
    files = [here.secrets / name for name in credentials.GENERATED]
    assert {stat.S_IMODE(f.stat().st_mode) for f in files} == {0o600}
    folders = [here.var, here.secrets, here.run, here.log]
    assert {stat.S_IMODE(f.stat().st_mode) for f in folders} == {0o700}


def test_a_second_start_keeps_them_and_mends_a_mode_that_was_opened(here: Places):
    before = credentials.read(here, "admin-password")
    (here.secrets / "admin-password").chmod(0o644)
    credentials.ensure(here)
    assert credentials.read(here, "admin-password") == before
    assert stat.S_IMODE((here.secrets / "admin-password").stat().st_mode) == 0o600


def test_an_empty_file_left_by_a_crash_is_filled(here: Places):
    (here.secrets / "redis-password").write_text("")
    credentials.ensure(here)
    assert len(credentials.read(here, "redis-password")) >= 40
