#!/usr/bin/env python3
"""Messages, help texts and public headers are in plain words: no text has a phrase of words.txt, and no
message is longer than three lines, before it has its numbers and names.

    test_words.py SOURCE_DIR [FILE...]    FILE: read instead of all of the tree

Texts are the string literals of product code, the comments of public headers, docstrings of the Python
package, and what scripts print. Exit status 1: each hit is printed as FILE:LINE.
"""
import ast
import pathlib
import re
import sys

FOLDERS = ("zero", "offload", "allocator", "kernels", "examples")
TOKEN = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|\s+|\w+|.', re.S)
LITERAL = r'"((?:\\.|[^"\\\n])*)"'
MESSAGE = re.compile(r"\b(?:\w*fail\w*|zr_log_write|report|refuse\w*)\([^;\"]*((?:" + LITERAL + r"\s*)+)")
MOST_CHARACTERS = 3 * 100
JOINED = re.compile(r"\s*\n\s*(?:\*(?!/))?\s*")


def c_texts(text, comments):
    """(line, text): literals, adjacent ones joined, and comments."""
    line, start, literal = 1, 0, None
    for token in TOKEN.findall(text + "\n;"):
        is_comment = token[:2] in ("/*", "//")
        if token[0] == '"':
            start, literal = (line, "") if literal is None else (start, literal)
            literal += token[1:-1]
        elif literal is not None and not token.isspace() and not is_comment:
            yield start, literal
            literal = None
        if is_comment and comments:
            yield line, JOINED.sub(" ", token.strip("/*").strip())
        line += token.count("\n")


def python_texts(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, " ".join(node.value.split())


def script_texts(text):
    for line, content in enumerate(text.split("\n"), 1):
        if not content.lstrip().startswith("#"):
            for quoted in re.findall(r'"((?:\\.|[^"\\])*)"|\'([^\']*)\'', content):
                yield line, "".join(quoted)


def texts(path, public):
    content = path.read_text(errors="replace")
    if path.suffix == ".py":
        return python_texts(content)
    if path.suffix == ".sh":
        return script_texts(content)
    return c_texts(re.sub(r"^#include.*$", "", content, flags=re.M), public)


def long_messages(path):
    content = path.read_text(errors="replace") if path.suffix in (".c", ".cu") else ""
    for call in MESSAGE.finditer(content):
        text = "".join(re.findall(LITERAL, call.group(1)))
        if len(text) > MOST_CHARACTERS:
            yield content.count("\n", 0, call.start()) + 1, text


def phrases(path):
    for line in path.read_text().splitlines():
        if line and not line.startswith("#"):
            pattern, instead = line.split("\t")
            yield re.compile(pattern, re.I), instead


def product_files(root):
    for folder in FOLDERS:
        yield from (p for p in sorted((root / folder).rglob("*")) if p.suffix in (".c", ".h", ".cu", ".cuh", ".sh"))
    yield from sorted((root / "python" / "libzero").glob("*.py"))


def main():
    root = pathlib.Path(sys.argv[1])
    listed = list(phrases(root / "tests/package/words.txt"))
    public = set(re.findall(r"[\w/]+\.h\b", (root / "cmake/ZrHeaders.cmake").read_text()))
    n_texts, hits = 0, 0
    for path in [pathlib.Path(p) for p in sys.argv[2:]] or product_files(root):
        name = str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
        for line, text in long_messages(path):
            hits += 1
            print(f'{name}:{line}: {len(text)} characters in "{text[:100]}"; write: at most {MOST_CHARACTERS}')
        for line, text in texts(path, name in public or bool(sys.argv[2:])):
            n_texts += 1
            for pattern, instead in listed:
                for hit in pattern.finditer(text):
                    hits += 1
                    print(f'{name}:{line}: "{hit.group()}" in "{text[:100]}"; write: {instead}')
    print(f"{n_texts} texts, {hits} hits")
    return hits != 0 or n_texts == 0


if __name__ == "__main__":
    sys.exit(main())
