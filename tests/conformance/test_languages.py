"""Each client by itself: its own tests, and the programs that its README shows."""

from __future__ import annotations

import ast
import asyncio
import io
import re
import tokenize
import tomllib
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from conformance.driving import DriverProcess
from conformance.languages import BUILD_S, LANGUAGES, ROOT, Example, Language, Ready, run
from conformance.stage import Stage
from docs.blocks import Block, blocks_of

pytestmark = pytest.mark.timeout(3 * BUILD_S)

FENCES = {"typescript": {"typescript", "ts"}}  # what stands behind the fence, if it is not the language's name
EXAMPLES = [
    (name, example) for name, language in LANGUAGES.items() for example in language.examples if not example.run_by
]
MOST_LINES = 400
GENERATED = {ROOT / "clients/python/headway/core/errors.py"}  # among what is written by hand; `make verify` compares it
# Tokens of Python that say nothing to the compiler, or say it of lines that have others.
SILENT = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}
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


@pytest.mark.long
@OF_LANGUAGE
async def test_client_passes_its_own_tests(language: str, ready: Ready) -> None:
    client = ready(language)
    for words in client.test:
        await asyncio.to_thread(run, client.command(words), cwd=client.test_cwd)


@OF_LANGUAGE
def test_layer_is_thin(language: str) -> None:
    """What is written by hand for a language stays small: the rest is generated, and everybody's."""
    files = {
        path
        for pattern in LANGUAGES[language].layer
        for path in ROOT.glob(pattern)
        if not path.stem.endswith("_test") and path.stem.lower() not in OF_TELEMETRY and path not in GENERATED
    }
    counts = {path.name: code_lines(path) for path in files}
    assert 0 < sum(counts.values()) <= MOST_LINES, counts


def code_lines(path: Path) -> int:
    """How many lines say something to the compiler: neither blank nor comment nor Python's docstrings."""
    text = path.read_text()
    if path.suffix == ".py":
        return len(python_lines(text))
    # Of block comments each line begins with a star.
    return sum(bool(line.strip()) and not line.lstrip().startswith(("//", "/*", "*")) for line in text.splitlines())


def python_lines(text: str) -> set[int]:
    """The lines on which a token stands that is neither a comment nor part of a docstring."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    told = (node.body[0] for node in ast.walk(ast.parse(text)) if isinstance(node, kinds) and ast.get_docstring(node))
    docstrings = {(node.lineno, node.col_offset) for node in told}
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    spans = (range(t.start[0], t.end[0] + 1) for t in tokens if t.type not in SILENT and t.start not in docstrings)
    return {line for span in spans for line in span}


def test_lines_of_python_are_those_that_do_something() -> None:
    text = '''"""A docstring
of two lines."""

import os  # a comment behind code


class A:
    """Another one."""

    # A comment alone.
    b = """a text
of two lines"""

    def c(self) -> tuple[str, str]:
        """A third."""
        return (
            "no docstring",

            os.sep,
        )
'''
    assert python_lines(text) == {4, 7, 11, 12, 14, 16, 17, 19, 20}


def test_rust_crate_leaves_applications_room_and_is_itself_built_as_its_lock_says() -> None:
    crate = tomllib.loads((ROOT / "clients/rust/Cargo.toml").read_text())
    told = {name: each if isinstance(each, str) else each["version"] for name, each in crate["dependencies"].items()}
    assert {name: version for name, version in told.items() if not version[0].isdigit()} == {}
    rust = LANGUAGES["rust"]
    builds = [words for words in (*rust.build, *rust.test) if words[0] == "cargo" and words[1] != "fmt"]
    assert builds
    assert [words for words in builds if "--locked" not in words] == []


@OF_LANGUAGE
def test_every_block_of_the_readme_is_run(language: str) -> None:
    client = LANGUAGES[language]
    if client.blocks_are_run_by:
        assert (ROOT / client.blocks_are_run_by).exists()
        return
    files = {example.file.read_text() for example in client.examples}
    assert files
    for example in client.examples:
        assert not example.run_by or example.file.stem in (ROOT / example.run_by).read_text()
    assert [block.line for block, _ in programs(client) if block.text not in files] == []


@pytest.mark.parametrize(("language", "example"), EXAMPLES, ids=lambda each: getattr(each, "name", each))
async def test_example_prints_what_the_readme_says(language: str, example: Example, ready: Ready, stage: Stage) -> None:
    shown = [said for block, said in programs(LANGUAGES[language]) if block.text == example.file.read_text()]
    assert shown, f"{example.file} is no block of its README"
    client = ready(language)
    # Examples use the same queue, each in its own way.
    settings = {"PRESSURE_PREFIX": f"__example_{uuid.uuid4().hex[:8]}__"}
    async with stage.scene(example.stage, {"settings": settings}) as scene:
        # What clients are to connect with has the names that the command line gives it.
        env = {"HEADWAY_ADDRESS": scene.addresses["service"]}
        env |= {f"HEADWAY_{name.upper()}": path for name, path in scene.options.items()}
        printed = await asyncio.to_thread(run, client.command(example.run), cwd=ROOT, env=env)
    whole = example.output.strip().removesuffix(r"\n")
    assert re.fullmatch(whole, printed.strip()), printed
    assert re.fullmatch(whole, shown[0].strip()), shown[0]
