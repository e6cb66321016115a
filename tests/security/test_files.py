"""The operator's files are followed, and not while somebody writes them."""

from __future__ import annotations

from pathlib import Path

from headwayd.access.access import Access
from headwayd.domain.errors import Unauthenticated
from security.callers import Caller, write_callers

OLD, NEW = Caller(roles=("admin",)), Caller(roles=("admin",))


async def knows(access: Access, caller: Caller) -> bool:
    try:
        await access.identify_token(caller.token)
    except Unauthenticated:
        return False
    return True


async def test_what_is_written_into_a_file_is_read_when_it_is_all_there(tmp_path: Path) -> None:
    file = write_callers(tmp_path / "callers.toml", [OLD])
    access = Access(file=file, signed=None)
    for so_far in ("", NEW.entry, f"{NEW.entry}\n{OLD.entry}"):
        file.write_text(so_far)
        access.refresh()
        assert (await knows(access, OLD), await knows(access, NEW)) == (True, False)
    access.refresh()
    assert (await knows(access, OLD), await knows(access, NEW)) == (True, True)
    file.write_text("")
    for is_known in (True, False, False):
        access.refresh()
        assert await knows(access, OLD) is is_known


async def test_what_takes_the_place_of_a_file_is_read_at_once(tmp_path: Path) -> None:
    file = write_callers(tmp_path / "callers.toml", [OLD])
    access = Access(file=file, signed=None)
    write_callers(file, [NEW])
    access.refresh()
    assert (await knows(access, OLD), await knows(access, NEW)) == (False, True)


async def test_a_file_that_could_not_be_used_is_read_once_it_can(tmp_path: Path) -> None:
    file = write_callers(tmp_path / "callers.toml", [OLD])
    access = Access(file=file, signed=None)
    for text in ("broken", NEW.entry):
        assert await knows(access, OLD)
        file.write_text(text)
        for _ in range(2):
            access.refresh()
    assert (await knows(access, OLD), await knows(access, NEW)) == (False, True)
