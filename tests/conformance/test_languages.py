"""Each client by itself: its own tests, and the programs that its README shows."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Awaitable, Callable

import pytest

from conformance.driving import DriverProcess
from conformance.languages import BUILD_S, LANGUAGES, ROOT, Example, Language, Ready, run
from conformance.stage import Stage
from docs.blocks import Block, blocks_of

pytestmark = pytest.mark.timeout(3 * BUILD_S)

FENCES = {"typescript": {"typescript", "ts"}}  # what stands behind the fence, if it is not the language's name
EXAMPLES = [(name, example) for name, language in LANGUAGES.items() for example in language.examples]
MOST_LINES = 400
OF_TELEMETRY = {"trace", "traces"}  # used only where an application has OpenTelemetry
OF_LANGUAGE = pytest.mark.parametrize("language", LANGUAGES)


def programs(language: Language) -> list[tuple[Block, str]]:
    """The README's blocks of the language, each with the `text` block behind it, "" if there is none."""
    blocks = blocks_of((ROOT / f"clients/{language.name}/README.md").read_text())
    fences = FENCES.get(language.name, {language.name})
    following = [*blocks[1:], Block(words=(), text="", line=0)]
    return [
        (block, after.text if after.words == ("text",) else "")
        for block, after in zip(blocks, following, strict=True)
        if block.words and block.words[0] in fences
    ]


@OF_LANGUAGE
async def test_driver_tells_what_it_is(language: str, driver_of: Callable[[str], Awaitable[DriverProcess]]) -> None:
    told = await (await driver_of(language)).ask("hello").answer()
    assert told["language"] == language
    assert told["version"]
    assert set(told["features"]) == {"call", "stream", "lease", "work", "watch", "trace"}


@OF_LANGUAGE
async def test_client_passes_its_own_tests(language: str, ready: Ready) -> None:
    client = ready(language)
    for words in client.test:
        await asyncio.to_thread(run, client.command(words), cwd=client.test_cwd)


@pytest.mark.parametrize("language", [name for name, language in LANGUAGES.items() if language.layer])
def test_layer_is_thin(language: str) -> None:
    """What is written by hand for a language stays small: the rest is generated, and everybody's."""
    files = {
        path
        for pattern in LANGUAGES[language].layer
        for path in ROOT.glob(pattern)
        if not path.stem.endswith("_test") and path.stem.lower() not in OF_TELEMETRY
    }
    counts = {path.name: sum(map(is_code, path.read_text().splitlines())) for path in files}
    assert 0 < sum(counts.values()) <= MOST_LINES, counts


def is_code(line: str) -> bool:
    """Whether a line says something to the compiler; of block comments each line begins with a star."""
    return bool(line.strip()) and not line.lstrip().startswith(("//", "/*", "*"))


@OF_LANGUAGE
def test_every_block_of_the_readme_is_run(language: str) -> None:
    client = LANGUAGES[language]
    if client.blocks_are_run_by:
        assert (ROOT / client.blocks_are_run_by).exists()
        return
    files = {example.file.read_text() for example in client.examples}
    assert files
    assert [block.line for block, _ in programs(client) if block.text not in files] == []


@pytest.mark.parametrize(("language", "example"), EXAMPLES, ids=lambda each: getattr(each, "name", each))
async def test_example_prints_what_the_readme_says(language: str, example: Example, ready: Ready, stage: Stage) -> None:
    shown = [said for block, said in programs(LANGUAGES[language]) if block.text == example.file.read_text()]
    assert shown, f"{example.file} is no block of its README"
    client = ready(language)
    # Examples use the same queue, each in its own way.
    settings = {"PRESSURE_PREFIX": f"__example_{uuid.uuid4().hex[:8]}__"}
    async with stage.scene("own", {"settings": settings}) as scene:
        env = {"HEADWAY_ADDRESS": scene.addresses["service"]}
        printed = await asyncio.to_thread(run, client.command(example.run), cwd=ROOT, env=env)
    whole = example.output.strip().removesuffix(r"\n")
    assert re.fullmatch(whole, printed.strip()), printed
    assert re.fullmatch(whole, shown[0].strip()), shown[0]
