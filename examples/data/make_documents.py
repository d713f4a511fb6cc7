#!/usr/bin/env python3
"""Make a document file for zero-train --data (docs/guide/fine-tune.md, "Data") with the tokenizer
of a Hugging Face model.

    python3 examples/data/make_documents.py --model MODEL --out train.bin [--pack SEQ] FILE...

MODEL is a folder with tokenizer.json and, if they are there, tokenizer_config.json and
chat_template.jinja.

A FILE is read by its name (also with .gz, .bz2 or .xz):

@KINDS@

An object is the first of these whose keys it has; its tokens with a loss:

@LAYOUTS@

Conversations go through the chat template, which ends turns; a text is ended by the model's end
token (eos_token). Loss of a turn: 0 or false as weight, train, training, trainable, loss,
loss_weight or loss_mask of a message takes it away.
"tools", "chat_template_kwargs" and "system" of an entry are given to the template.

An entry or a file that cannot be read as it is meant is refused with its place and the cause, and
nothing is written, unless --skip-refused leaves it out.

--format gpt2 or llama writes llm.c's token files instead, of texts alone: 16 or 32 bits per token,
one row.

Needs tokenizers and, for conversations, jinja2.
"""

import argparse
import array
import bisect
import bz2
import collections
import contextlib
import csv
import difflib
import gzip
import io
import json
import lzma
import os
import re
import secrets
import struct
import sys
import time
import typing
import zlib

BEGINS, HAS_NO_LOSS, MOST_TOKENS = 1 << 30, 1 << 31, 1 << 30
FORMATS = {"documents": (20261123, 1, "I"), "gpt2": (20240520, 1, "H"), "llama": (20240801, 7, "I")}


# What a terminal would obey: controls, ends of lines, directions of writing; and what is no text.
CONTROLS = re.compile("[\0-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def shown(text):
    """Text of files, and names of theirs, as kernels/base/log.c shows them."""
    def escaped(found):
        number = ord(found[0])
        if 0xDC80 <= number < 0xDD00:  # a byte of a name that is not UTF-8
            number -= 0xDC00
            return f"\\x{number:02x}"
        return f"\\x{number:02x}" if number < 0x80 else f"\\u{number:04x}"

    return CONTROLS.sub(escaped, text)


def fail(message, status=2):
    """End with the status of the programs: 2 for usage and input, 1 where writing fails."""
    print(shown(f"make_documents.py: {message}"), file=sys.stderr)
    sys.exit(status)


def needed(what, package):
    """Debian's Python installs into a virtual environment alone."""
    return (f"{what} {package}: pip install {package}, in a virtual environment "
            "(python3 -m venv env && . env/bin/activate)")


class Refused(Exception):
    """The cause why an entry, or a file, is not read; with the line, where the file is read as a
    whole."""

    def __init__(self, cause, line=None):
        super().__init__(cause)
        self.line = line


def quoted(names):
    return ", ".join(f'"{name}"' for name in names)


def twice_in(names):
    """The cause why names are refused, or None. Columns without a name may be there twice."""
    twice = [name for name, n in collections.Counter(names).items() if n > 1 and name != ""]
    if not twice:
        return None
    return f"{quoted(twice)}: there more than once, and all but the last would be lost; keep one"


class LongInteger(str):
    """The digits of an integer that Python does not convert."""


def unreadable_in(value):
    """The cause why a value that JSON has is not read, or None. Objects are read before."""
    if isinstance(value, LongInteger):
        return f"an integer of {len(value)} digits is too long; write it as a string"
    if isinstance(value, list):
        return next(filter(None, map(unreadable_in, value)), None)
    half = re.search("[\ud800-\udfff]", value) if isinstance(value, str) else None
    if half is None:
        return None
    return f"\\u{ord(half[0]):04x} is half a character (a lone surrogate); take it out"


class Decoder(json.JSONDecoder):
    """Reads JSON, and notes the first thing that Python would drop, or cannot handle. It reads on
    behind it, so that other entries of the file are read."""

    def __init__(self):
        super().__init__(object_pairs_hook=self.object_of, parse_int=self.integer_of)
        self.cause = None

    def object_of(self, pairs):
        for key, value in pairs:
            cause = unreadable_in(key) or unreadable_in(value)
            if cause is not None and self.cause is None:
                self.cause = f'"{key}": {cause}'
        self.cause = self.cause or twice_in(key for key, _ in pairs)
        return dict(pairs)

    def integer_of(self, digits):
        try:
            return int(digits)
        except ValueError:
            return LongInteger(digits)

    def checked(self, value):
        """The value, or the cause why it is refused."""
        cause, self.cause = self.cause or unreadable_in(value), None
        return value if cause is None else Refused(cause)


def json_of(text, what):
    """The value of a text that is JSON inside an entry."""
    decoder = Decoder()
    try:
        value = decoder.checked(decoder.decode(text))
    except (TypeError, ValueError, RecursionError) as error:
        raise Refused(f"{what} not JSON: {error}") from error
    if isinstance(value, Refused):
        raise value
    return value


def name_of(value):
    """The kind of a value, in JSON's words."""
    kinds = ((bool, "a boolean"), (str, "a string"), (dict, "an object"), (list, "a list"),
             ((int, float), "a number"))
    return next((name for kind, name in kinds if isinstance(value, kind)), "null")


# ---- chat templates ---------------------------------------------------------------------------

# The text that {% generation %} marks stands between these in what is rendered.
MARK_BEGINS, MARK_ENDS = (f"\ufdd0{name}{secrets.token_hex(8)}\ufdd1" for name in "be")
# Texts that no template writes by itself.
PROBE, OTHER_PROBE = "Qprobeanswer", "Qprobequestion"


def compile_template(source):
    """As transformers compiles one."""
    try:
        import jinja2
        import jinja2.ext
        import jinja2.sandbox
    except ImportError:
        fail(needed("conversations need", "jinja2"))

    class Generation(jinja2.ext.Extension):
        """{% generation %}: marks what the assistant says."""

        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("mark"), [], [], body).set_lineno(line)

        def mark(self, caller):
            return MARK_BEGINS + caller() + MARK_ENDS

    def refuse(message):
        raise jinja2.exceptions.TemplateError(message)

    def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: time.strftime(form)
    try:
        return environment.from_string(source)
    except jinja2.exceptions.TemplateSyntaxError as error:
        fail(f"line {error.lineno} of the chat template: {error.message}")


class Template:
    """A chat template, with the values that it has for one conversation or another."""

    def __init__(self, source, texts):
        self.source = source
        self.texts = texts
        self.compiled = compile_template(source)
        self.has_marks = re.search(r"{%[-+]?\s*generation\s*[-+]?%}", source) is not None
        self.ends_turns = None  # not known yet
        self.takes_parts = False
        if not self.writes_probe():
            self.takes_parts = True
            self.takes_parts = self.writes_probe()

    def knows(self, name):
        return re.search(rf"\b{re.escape(name)}\b", self.source) is not None

    def names(self, role):
        return re.search(rf"""(['"]){re.escape(role)}\1""", self.source) is not None

    def writes_probe(self):
        """Templates for images may write parts alone, and no content that is a string."""
        try:
            return PROBE in self.render([{"role": "user", "content": PROBE}], {})
        except Refused:
            return False

    def render_marked(self, messages, values, prompts=False):
        if self.takes_parts:
            messages = [in_parts(message) for message in messages]
        values = {"tools": None, "documents": None, **self.texts, **values}
        try:
            return self.compiled.render(**values, messages=messages, add_generation_prompt=prompts)
        except Exception as error:  # of any kind: templates are programs
            raise Refused(f"the chat template refuses the conversation: {error}") from error

    def render(self, messages, values, prompts=False):
        text = self.render_marked(messages, values, prompts)
        return text.replace(MARK_BEGINS, "").replace(MARK_ENDS, "") if self.has_marks else text

    def marks(self, messages, values):
        """The text, and the places in it that the template marks."""
        text, spans = "", []
        for piece in self.render_marked(messages, values).split(MARK_BEGINS):
            inside, is_mark, outside = piece.partition(MARK_ENDS)
            if is_mark:
                spans.append((len(text), len(text) + len(inside)))
            text += inside + outside
        return text, spans

    def settle(self, messages, values):
        """The messages in the form that this template writes right: "content" that is absent, as
        in calls of tools, is "" where it would be written as None; arguments that are JSON in a
        string, as OpenAI has them, are an object where they would be written as JSON once more."""
        if any(message.get("content") is None or "tool_calls" in message for message in messages):
            messages = self.without_none(messages, values)
        strings = [
            arguments for message in messages for call in message.get("tool_calls", ())
            for arguments in [function_of(call).get("arguments")] if isinstance(arguments, str)
        ]
        if strings:
            text = self.render(messages, values)
            if any(json.dumps(string, ensure_ascii=False) in text for string in strings):
                messages = [with_calls(message, with_object) for message in messages]
        return messages

    def without_none(self, messages, values):
        """The messages as they are, or with null or "" for content that is absent: the form of
        which the template writes the calls, and the fewest None."""
        def filled(content):
            return [
                {**message, "content": content} if message.get("content") is None else message
                for message in messages
            ]

        def faults(form):
            probed = self.render([with_calls(message, named_probe) for message in form], values)
            return max(0, n_calls - probed.count(PROBE)), self.render(form, values).count("None")

        n_calls = sum(len(message.get("tool_calls", ())) for message in messages)
        found, cause = [], None
        for form in (messages, filled(None), filled("")):
            try:
                found.append((faults(form), len(found), form))
            except Refused as error:
                cause = cause or error
        if not found:
            raise cause
        (n_missing, _), _, best = min(found, key=lambda form: form[:2])
        if n_missing > 0:
            raise Refused(
                f"the chat template does not write {n_missing} of {n_calls} calls of tools")
        return best

    def check_written(self, messages, values):
        """A template may leave out what it does not know, a system's message or a tool's, without
        an error."""
        text = self.render(messages, values)
        for i, message in enumerate(messages):
            content = (message.get("content") or "").strip()
            if content in text or json.dumps(content, ensure_ascii=False)[1:-1] in text:
                continue
            probed = [*messages[:i], {**message, "content": PROBE}, *messages[i + 1:]]
            if PROBE not in self.render(probed, values):
                raise Refused(
                    f'message {i} (role "{message["role"]}"): the chat template does not write its '
                    "content there; take it out, or use another template")

    def header(self, messages, i, values):
        """The text up to where the assistant begins to say message i."""
        before = self.render(messages[:i], values, True)
        after = self.render(messages[:i + 1], values)
        if not after.startswith(before):  # it asks for more than the turn has: for thoughts
            probed = self.render([*messages[:i], {"role": "assistant", "content": PROBE}], values)
            shared = os.path.commonprefix([before, probed])
            before = shared if after.startswith(shared) else os.path.commonprefix([before, after])
            if not before.startswith(self.render(messages[:i], values) if i > 0 else ""):
                raise Refused(
                    f"the chat template does not go on from what came before message {i}: which "
                    "tokens are the assistant's cannot be told")
        return before, after.rstrip()

    def has_own_ends(self, messages, i, values):
        """In some templates the next turn's marker is the end of the assistant's."""
        if self.ends_turns is None:
            text = self.render([*messages[:i], {"role": "assistant", "content": PROBE}], values)
            self.ends_turns = text.rpartition(PROBE)[2].strip() != ""
        return self.ends_turns

    def next_marker(self, messages, i, values):
        """The text between the assistant's message i and a user's next; "" where it is refused."""
        turns = [{"role": "assistant", "content": PROBE}, {"role": "user", "content": OTHER_PROBE}]
        try:
            text = self.render([*messages[:i], *turns], values)
        except Refused:
            return ""
        return text.rpartition(PROBE)[2].partition(OTHER_PROBE)[0]


def in_parts(message):
    if message.get("content") is None:
        return message
    return {**message, "content": [{"type": "text", "text": message["content"]}]}


def function_of(call):
    """OpenAI wraps it, others do not."""
    return call.get("function", call)


def with_calls(message, change):
    """The message with the functions of its calls changed."""
    if "tool_calls" not in message:
        return message
    calls = [
        {**call, "function": change(call["function"])} if "function" in call else change(call)
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def named_probe(function):
    return {**function, "name": PROBE}


def with_object(function):
    if not isinstance(function.get("arguments"), str):
        return function
    return {**function, "arguments": json_of(function["arguments"], "arguments of a tool call are")}


class Model:
    """A folder's tokenizer and templates."""

    def __init__(self, folder):
        try:
            import tokenizers
        except ImportError:
            fail(needed("the tokenizer needs", "tokenizers"))
        path = os.path.join(folder, "tokenizer.json")
        if not os.path.exists(path):
            fail(f"--model {folder}: there is no tokenizer.json in it")
        self.folder = folder
        try:
            self.tokenizer = tokenizers.Tokenizer.from_file(path)
        except Exception as error:  # tokenizers raises no narrower one
            fail(f"{path}: not a tokenizer of Hugging Face: {error}")
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()
        self.config = self.read_json("tokenizer_config.json")
        self.templates = {}  # compiled, by name
        texts = {
            name: self.text_of(name)
            for name in ("bos_token", "eos_token", "pad_token", "unk_token")
        }
        self.texts = {name: text for name, text in texts.items() if text is not None}
        self.notes = collections.Counter()  # for the summary

    def read_json(self, name):
        path = os.path.join(self.folder, name)
        if not os.path.exists(path):
            return {}
        try:
            value = json_of(read_whole(path), "the file is")
        except (Refused, OSError) as cause:
            fail(f"{path}: {cause}")
        if not isinstance(value, dict):
            fail(f"{path}: must be an object, not {name_of(value)}")
        return value

    def text_of(self, name):
        token = self.config.get(name)
        text = token.get("content") if isinstance(token, dict) else token
        if text is not None and not isinstance(text, str):
            fail(f'--model {self.folder}: "{name}" of tokenizer_config.json must be a string or an '
                 f'object with "content", not {name_of(token)}')
        return text

    def find_sources(self):
        """Templates by name."""
        source = self.config.get("chat_template")
        if isinstance(source, list):
            sources = {
                entry.get("name"): entry.get("template")
                for entry in source if isinstance(entry, dict)
            }
        else:
            sources = {"default": source} if source else {}
        if not all(isinstance(text, str) for pair in sources.items() for text in pair):
            fail(f'--model {self.folder}: "chat_template" of tokenizer_config.json must be a '
                 'string or a list of objects with "name" and "template"')
        more = os.path.join(self.folder, "additional_chat_templates")
        paths = {"default": os.path.join(self.folder, "chat_template.jinja")}
        if os.path.isdir(more):
            paths.update({
                name[:-6]: os.path.join(more, name)
                for name in os.listdir(more) if name.endswith(".jinja")
            })
        for name, path in paths.items():
            if os.path.exists(path):
                try:
                    sources[name] = read_whole(path)
                except (Refused, OSError) as cause:
                    fail(f"{path}: {cause}")
        if "default" not in sources:
            fail(f"--model {self.folder}: conversations need a chat template, chat_template.jinja "
                 "or chat_template of tokenizer_config.json")
        return sources

    def template(self, has_tools=False):
        """That of transformers: the one for tools where there are any and it is there."""
        if not self.templates:
            self.templates = {
                name: Template(source, self.texts)
                for name, source in self.find_sources().items() if name in ("default", "tool_use")
            }
        return self.templates.get("tool_use" if has_tools else "default", self.templates["default"])

    def text(self, text, n_prompt=0):
        """Tokens, and which have a loss: those behind the first n_prompt characters."""
        encoding = self.tokenizer.encode(text)
        tokens = encoding.ids
        has_loss = [n_prompt == 0 or stop > n_prompt for _, stop in encoding.offsets]
        end = self.tokenizer.token_to_id(self.texts.get("eos_token", ""))
        if end is not None and tokens[-1:] != [end]:
            tokens.append(end)
            has_loss.append(True)
        if end is not None:
            has_loss[-1] = True  # also one of the tokenizer's own, which has no place in the text
        return tokens, has_loss

    def marked(self, text, spans):
        """A token that begins before a span and goes on in it has a loss, as with transformers."""
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        has_loss = [
            any(start < end and stop > begin for begin, end in spans)
            for start, stop in encoding.offsets
        ]
        return encoding.ids, has_loss

    def end_of_last_turn(self, template, messages, i, values):
        """The end of a last turn that the template does not end: the token that the next turn
        would begin with if it is one of the tokenizer's own, else eos_token."""
        marker = template.next_marker(messages, i, values)
        rest = marker.lstrip()
        added = {token.content for token in self.tokenizer.get_added_tokens_decoder().values()}
        found = max((token for token in added if rest.startswith(token)), key=len, default=None)
        if found is not None:
            return marker[:len(marker) - len(rest)] + found
        if "eos_token" not in self.texts:
            self.notes["conversations whose last turn has no end: the model has no eos_token"] += 1
        return self.texts.get("eos_token", "")

    def conversation(self, messages, has_loss, values):
        """Documents. The assistant's turns are what the template marks, or else what it adds to
        what came before and asks for one. Where it writes turns otherwise when there are later
        ones (without their thoughts), each is a document of its own."""
        template = self.template(bool(values.get("tools")))
        messages = template.settle(messages, values)
        turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        if template.has_marks:
            text, spans = template.marks(messages, values)
            wanted = [has_loss[i] for i in turns]
            if len(spans) != len(turns):
                if not spans or not all(wanted):
                    raise Refused(
                        f"the chat template marks {len(spans)} generations, and the assistant has "
                        f"{len(turns)} turns: which tokens have a loss cannot be told")
                wanted = [True] * len(spans)
            documents = [
                self.marked(text, [span for span, is_wanted in zip(spans, wanted) if is_wanted])
            ]
        else:
            documents = self.turns(template, messages, [i for i in turns if has_loss[i]], turns[-1],
                                   values)
        template.check_written(messages, values)
        return documents

    def turns(self, template, messages, wanted, last, values):
        text = template.render(messages, values)
        headers = {i: template.header(messages, i, values) for i in {*wanted, last}}
        eos = self.texts.get("eos_token")
        # A token at the end of the conversation ends no other turn.
        for i, (before, after) in headers.items():
            shorter = after.removesuffix(eos).rstrip() if eos else after
            if not text.startswith(after) and text.startswith(shorter):
                headers[i] = before, shorter
        is_ended = template.has_own_ends(messages, last, values)
        is_whole = all(text.startswith(after) for _, after in headers.values())

        def ended(i, whole):
            """The text with an end of turn i, and the span of what the assistant says in it."""
            before, after = headers[i]
            rest = whole[len(after):]
            if not is_ended and rest.strip():  # the next marker's first token is the end
                return whole, (len(before), len(after) + len(rest) - len(rest.lstrip()) + 1)
            if not is_ended:
                whole = after + self.end_of_last_turn(template, messages, i, values)
                return whole, (len(before), len(whole))
            return whole, (len(before), len(after))

        if is_whole or not wanted:
            text, _ = ended(last, text)
            return [self.marked(text, [ended(i, text)[1] for i in wanted])]
        pairs = [ended(i, template.render(messages[:i + 1], values)) for i in wanted]
        return [self.marked(whole, [span]) for whole, span in pairs]


# ---- messages ---------------------------------------------------------------------------------

ROLES = ("system", "developer", "user", "assistant", "tool", "function", "ipython")
# Names of roles in ShareGPT and in templates, for those that a template does not know itself. One
# that takes "assistant" may write "model" for it, so that one is read as the other.
OTHER_ROLES = {
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bard": "assistant",
    "bing": "assistant",
    "model": "assistant",
    "observation": "tool",
    "function_response": "tool"
}
# Keys that say if a turn has a loss: in OpenAI's files (0 or 1), in axolotl's, and in others.
WEIGHTS = ("weight", "train", "training", "trainable", "loss", "loss_weight", "loss_mask")
REFUSED_OF_MESSAGE = {
    "mask": 'in some files 1 means a loss, in others none; rename it to "weight" (0: no loss)',
    "function_call": 'write it as "tool_calls"',
    "train_detail": 'use "weight" or "train" for whole turns',
    "training_detail": 'use "weight" or "train" for whole turns'
}


def text_of_content(content):
    """A string, of parts that are texts as well; None stays."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise Refused(f'"content" must be a string or a list of parts, not {name_of(content)}')
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else name_of(part)
        if kind != "text" or not isinstance(part.get("text"), str):
            raise Refused(
                f'"content" has a part of type "{kind}"; allowed: {{"type": "text", "text": "..."}}'
            )
    return "".join(part["text"] for part in content)


def role_of(role, template):
    if not isinstance(role, str):
        raise Refused(f'"role" must be a string, not {name_of(role)}')
    other = OTHER_ROLES.get(role)
    is_other_name = other == "assistant" and template.names(other)
    if role in ROLES or (template.names(role) and not is_other_name):
        return role
    if other is not None:
        return other
    allowed = [*ROLES, *OTHER_ROLES]
    near = difflib.get_close_matches(role.lower(), allowed, 1)
    raise Refused(f'role "{role}" is unknown' + (f'; did you mean "{near[0]}"?' if near else "") +
                  f" (allowed: {', '.join(allowed)}, and what the chat template names)")


def loss_of(message):
    """True if a turn has a loss; takes what says it out of the message."""
    said = {name: message.pop(name) for name in WEIGHTS if name in message}
    for name, value in said.items():
        if value not in (0, 1):
            raise Refused(
                f'"{name}": {json.dumps(value)}; allowed: 0 and false (no loss), 1 and true; take '
                "it out if it means something else")
        if value and message["role"] != "assistant":
            raise Refused(
                f'"{name}": {json.dumps(value)}: a message with role "{message["role"]}" has no '
                "loss, the assistant's alone have; leave it out")
    return message["role"] == "assistant" and all(said.values())


def check_calls(message):
    calls = message.get("tool_calls", [])
    if not isinstance(calls, list) or not all(
            isinstance(call, dict) and isinstance(function_of(call), dict) for call in calls):
        raise Refused(
            '"tool_calls" must be a list of objects, each with "function" or "name" and "arguments"'
        )
    if not calls:
        message.pop("tool_calls", None)
    if message.get("content") is None and not calls:
        raise Refused('"content" is absent or null, and there are no "tool_calls"')


def as_message(given):
    """ShareGPT's names; what is null is absent, but for the content."""
    if not isinstance(given, dict):
        raise Refused(f"a message must be an object, not {name_of(given)}")
    given = {key: value for key, value in given.items() if value is not None or key == "content"}
    if "role" in given or "from" not in given:
        return given
    names = {"from": "role", "value": "content"}
    message = {names.get(key, key): value for key, value in given.items()}
    if message["role"] == "function_call":
        call = json_of(message.pop("content", ""), '"value" of "function_call" is')
        message.update(role="assistant", tool_calls=call if isinstance(call, list) else [call])
    return message


def read_messages(model, given, values):
    """The messages as a template takes them, and which of them have a loss."""
    if not isinstance(given, list):
        raise Refused(f"there are no messages: a list is needed, not {name_of(given)}")
    if not given:
        raise Refused("there are no messages: the list is empty")
    template = model.template(bool(values.get("tools")))
    messages, has_loss = [], []
    for i, entry in enumerate(given):
        try:
            message = as_message(entry)
            message["role"] = role_of(message.get("role"), template)
            if "content" in message:
                message["content"] = text_of_content(message["content"])
            has_loss.append(loss_of(message))
            check_calls(message)
            check_keys(model, message, template)
        except Refused as cause:
            raise Refused(f"message {i}: {cause}") from cause
        messages.append(message)
    return messages, has_loss


def check_keys(model, message, template):
    for key in message:
        if key in REFUSED_OF_MESSAGE:
            raise Refused(f'"{key}" is not supported; {REFUSED_OF_MESSAGE[key]}')
        if key == "tool_calls" and not template.knows(key):
            raise Refused(f'the chat template does not write "{key}"')
        if key not in ("role", "content") and not template.knows(key):
            model.notes[f'messages with "{key}", which the chat template does not write'] += 1
    says_nothing = not message.get("content") and "tool_calls" not in message
    if message["role"] == "assistant" and says_nothing:
        model.notes["empty answers"] += 1


def read_values(model, entry):
    """Values of an entry for the template, in addition to its messages."""
    values = {}
    for key, kind in (("chat_template_kwargs", dict), ("tools", list), ("documents", list)):
        value = entry.pop(key, None)
        if isinstance(value, str) and value.strip():  # tables have no lists of any objects
            value = json_of(value, f'"{key}" is')
        if not value:
            continue
        if not isinstance(value, kind):
            raise Refused(f'"{key}" must be {name_of(kind())}, not {name_of(value)}')
        if kind is dict:
            values.update(value)
            continue
        if not model.template(key == "tools").knows(key):
            raise Refused(
                f'the chat template does not write "{key}"; take it out, or use another template')
        values[key] = value
    return values


# ---- entries ----------------------------------------------------------------------------------


def chat(model, messages, entry, first_turn=0):
    """A conversation whose turns from first_turn on have a loss."""
    system = entry.pop("system", None)
    if system:
        messages, first_turn = [{"role": "system", "content": system}, *messages], first_turn + 1
    values = read_values(model, entry)
    messages, has_loss = read_messages(model, messages, values)
    has_loss = [has and i >= first_turn for i, has in enumerate(has_loss)]
    if not any(message["role"] == "assistant" for message in messages[first_turn:]):
        raise Refused("there is no turn of the assistant, so there is nothing to learn")
    return model.conversation(messages, has_loss, values)


def string_of(entry, key):
    value = entry.pop(key, "")
    if not isinstance(value, str):
        raise Refused(f'"{key}" must be a string, not {name_of(value)}')
    return value


def read_chat(key):
    def read(model, entry):
        return chat(model, entry.pop(key), entry)

    return read


def read_text(model, entry):
    if not isinstance(entry["text"], str):
        raise Refused(f'an object with "text" needs a string there, not {name_of(entry["text"])}')
    if not entry["text"]:
        model.notes["empty texts"] += 1
    return [model.text(entry.pop("text"))]


def read_completion(model, entry):
    prompt, completion = entry["prompt"], entry["completion"]
    if isinstance(entry.get("label"), bool):
        raise Refused(
            '"label" is not supported: preferences are not learned; keep the entries that are true')
    if isinstance(prompt, list) and isinstance(completion, list):
        del entry["prompt"], entry["completion"]
        return chat(model, prompt + completion, entry, len(prompt))
    if not (isinstance(prompt, str) and isinstance(completion, str)):
        raise Refused(
            f'"prompt" and "completion" must be two strings or two lists of messages, not '
            f"{name_of(prompt)} and {name_of(completion)}")
    prompt, completion = string_of(entry, "prompt"), string_of(entry, "completion")
    return [model.text(prompt + completion, len(prompt))]


def read_instruction(model, entry):
    """The input, if there is one, stands below the instruction, with an empty line between."""
    question, answer = string_of(entry, "instruction"), string_of(entry, "output")
    more = string_of(entry, "input")
    pairs = entry.pop("history", []) or []
    if not isinstance(pairs, list) or not all(
            isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise Refused('"history" must be a list of pairs, question and answer')
    messages = []
    for asked, said in [*pairs, (f"{question}\n\n{more}" if more else question, answer)]:
        messages.append({"role": "user", "content": asked})
        messages.append({"role": "assistant", "content": said})
    return chat(model, messages, entry)


class Layout(typing.NamedTuple):
    """The layout of an entry, known by its keys."""

    keys: tuple
    shown: str
    targets: str
    read: typing.Callable  # (model, entry): documents; takes out of the entry what it has read


# The first one whose keys an entry has is taken. "text" is the last: beside the keys of another, as
# in Alpaca's files, it is a rendering of them.
LAYOUTS = (
    Layout(("messages",), '{"messages": [{"role": "user", "content": "..."}, ...]}',
           "those of the assistant's turns", read_chat("messages")),
    Layout(("conversations",), '{"conversations": [{"from": "human", "value": "..."}, ...]}',
           "those of the assistant's turns", read_chat("conversations")),
    Layout(("prompt", "completion"), '{"prompt": "...", "completion": "..."}',
           "those of the completion; both may be lists of messages", read_completion),
    Layout(("instruction", "output"),
           '{"instruction": "...", "input": "...", "output": "..."}',
           "those of the output, the assistant's turn", read_instruction),
    Layout(("text",), '{"text": "..."}', "all", read_text))
# Keys that change the meaning of an entry, and cannot be heeded.
REFUSED_OF_ENTRY = {
    **dict.fromkeys(("chosen", "rejected"),
                    "preferences are not learned; give the answer to learn as messages"),
    **dict.fromkeys(("image", "images", "video", "videos", "audio", "audios"),
                    "only text is read; take the key out to learn the text alone"),
    **dict.fromkeys(("functions", "function_call"), 'write "tools" and "tool_calls"'),
    "weight": "take it out; zero-train --data-weights gives weights to files"
}


def documents_of_entry(model, entry):
    if not isinstance(entry, dict):
        raise Refused(f"an entry must be an object, not {name_of(entry)}")
    entry = {key: value for key, value in entry.items() if value is not None}
    for key in entry:
        if key in REFUSED_OF_ENTRY:
            raise Refused(f'"{key}" is not supported: {REFUSED_OF_ENTRY[key]}')
    layout = next((layout for layout in LAYOUTS if all(key in entry for key in layout.keys)), None)
    if layout is None:
        others = LAYOUTS[1:-1]
        more = ", ".join(" and ".join(f'"{key}"' for key in layout.keys) for layout in others)
        raise Refused(
            f'an object with "text" or "messages" (or {more}) is needed; keys of this one: '
            f"{quoted(entry) or 'none'}")
    documents = layout.read(model, entry)
    if not any(any(has_loss) for _, has_loss in documents):
        model.notes["entries without a loss, by their weights"] += 1
    for key in entry:
        model.notes[f'entries with "{key}", which is not read'] += 1
    return documents


# ---- files ------------------------------------------------------------------------------------

COMPRESSED = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}
SUFFIXES_OF_COMPRESSED = (".gz", ".bz2", ".xz")
UNREADABLE = {
    b"\x28\xb5\x2f\xfd": "compressed by zstd; zstd -d makes a file that can be read",
    b"PAR1": "Parquet; name it .parquet, or use --as parquet",
    b"PK\x03\x04": "a zip archive; unzip it",
    b"version https://git-lfs": "a pointer of git-lfs; git lfs pull fetches the file",
    b"\xff\xfe": "UTF-16; iconv -f utf-16 -t utf-8 converts it",
    b"\xfe\xff": "UTF-16; iconv -f utf-16 -t utf-8 converts it"
}


@contextlib.contextmanager
def open_bytes(path):
    """A file's bytes, decompressed if its first ones say so. It may be a pipe."""
    with open(path, "rb") as file:
        begin = file.peek(32)
        for magic, cause in UNREADABLE.items():
            if begin.startswith(magic):
                raise Refused(f"the file is {cause}")
        openers = [opener for magic, opener in COMPRESSED.items() if begin.startswith(magic)]
        yield openers[0](file) if openers else file


def decoded(line):
    if b"\0" in line:
        raise Refused("the file is binary: it has bytes 0")
    try:
        return line.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Refused(
            f"byte 0x{error.object[error.start]:02x} is not UTF-8; if the file is in Latin-1, "
            "iconv -f latin1 -t utf-8 converts it") from error


def read_whole(path):
    """The text of a file; what is refused names the line."""
    with open_bytes(path) as file:
        whole = file.read()
    try:
        return decoded(whole)
    except Refused:
        for number, line in enumerate(whole.split(b"\n"), 1):
            try:
                decoded(line)
            except Refused as cause:
                raise Refused(str(cause), number) from cause
        raise


def parsed(parse, *arguments):
    try:
        return parse(*arguments)
    except json.JSONDecodeError as error:
        raise Refused(f"not JSON: {error.msg} at column {error.colno}", error.lineno) from error
    except RecursionError as error:
        raise Refused("lists and objects are nested too deeply") from error


# Each of these gives pairs: the place of an entry in its file, and the entry, or the cause why it
# is none.


def lines_of_jsonl(path):
    with open_bytes(path) as file:
        for number, line in enumerate(file, 1):
            try:
                text = decoded(line).strip()
                if text:
                    decoder = Decoder()
                    yield number, decoder.checked(parsed(decoder.decode, text))
            except Refused as cause:
                yield number, cause


def values_of_json(path):
    """The elements of one list, or values one after the other."""
    text = read_whole(path)
    skip, decoder = re.compile(r"\s*"), Decoder()
    place = skip.match(text).end()
    is_list = text[place:place + 1] == "["
    place = skip.match(text, place + is_list).end()
    line, counted = 1, 0
    while place < len(text) and not (is_list and text[place] == "]"):
        line, counted = line + text.count("\n", counted, place), place
        value, place = parsed(decoder.raw_decode, text, place)
        yield line, decoder.checked(value)
        place = skip.match(text, place).end()
        if is_list and text[place:place + 1] == ",":
            place = skip.match(text, place + 1).end()
        elif is_list and text[place:place + 1] != "]":
            parsed(decoder.decode, text)  # says where it is broken
    if is_list:
        parsed(decoder.decode, text)


def rows_of_table(delimiter):
    def rows(path):
        csv.field_size_limit(1 << 30)
        uneven = Refused("the row has not as many cells as the first line, which names them")
        reader = csv.DictReader(io.StringIO(read_whole(path), newline=""), delimiter=delimiter,
                                strict=True)
        try:
            cause = twice_in(reader.fieldnames or ())
            if cause is not None:
                raise Refused(cause, 1)
            for row in reader:
                is_even = None not in row and None not in row.values()
                yield reader.line_num, row if is_even else uneven
        except csv.Error as error:
            yield reader.line_num, Refused(str(error))

    return rows


def without_nulls(value):
    """Arrow has every key in every object, with null for those that were absent."""
    if isinstance(value, dict):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


def rows_of_parquet(path):
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise Refused(needed("Parquet needs", "pyarrow")) from None
    try:
        number, file = 0, pyarrow.parquet.ParquetFile(path)
        cause = twice_in(file.schema_arrow.names)
        if cause is not None:
            raise Refused(cause)
        for batch in file.iter_batches(1024):
            for row in batch.to_pylist():
                number += 1
                yield f"row {number}", without_nulls(row)
    except pyarrow.ArrowException as error:
        raise Refused(f"not a whole Parquet file: {error}") from error


def text_of_file(path):
    text = read_whole(path)
    if text:
        yield 1, {"text": text}


def text_unless_json(path):
    """A file whose name says nothing is a text, unless it plainly is something else."""
    for line, entry in text_of_file(path):
        text = entry["text"].strip()
        for kind, part in ("json", text), ("jsonl", text.partition("\n")[0]):
            try:
                if text[:1] in ("{", "[") and isinstance(json.loads(part), (dict, list)):
                    raise Refused(
                        f"the file is JSON; name it .{kind}, or use --as {kind}, or --as text to "
                        "learn it as a text", line)
            except (ValueError, RecursionError):
                pass
        yield line, entry


class Kind(typing.NamedTuple):
    suffixes: tuple
    shown: str
    read: typing.Callable  # (path): pairs of place and entry


KINDS = {
    "jsonl": Kind((".jsonl", ".ndjson"), "an object in each line", lines_of_jsonl),
    "json": Kind((".json",), "a list of objects, or objects one after the other", values_of_json),
    "csv": Kind((".csv",), "a line of keys, and a row for each object", rows_of_table(",")),
    "tsv": Kind((".tsv",), "the same with tabs", rows_of_table("\t")),
    "parquet": Kind((".parquet", ".pq"), "an object in each row (needs pyarrow)", rows_of_parquet),
    "text": Kind((), "one text, unless it is binary or JSON", text_of_file)
}


def reader_of(path, asked):
    name = path.lower()
    for suffix in SUFFIXES_OF_COMPRESSED:
        name = name.removesuffix(suffix)
    if asked is not None:
        return KINDS[asked].read
    readers = (kind.read for kind in KINDS.values() if name.endswith(kind.suffixes))
    return next(readers, text_unless_json)


def entries_of_file(path, asked):
    """Places and entries, or causes; never an exception of a file's."""
    try:
        yield from reader_of(path, asked)(path)
    except Refused as cause:
        yield cause.line, cause
    except OSError as error:
        yield None, Refused(f"cannot be read: {error.strerror or error}")
    except (EOFError, zlib.error, lzma.LZMAError) as error:
        yield None, Refused(f"cannot be decompressed: {error}")


MOST_TOLD = 20


class Reading:
    """The documents of all files, and what was refused."""

    def __init__(self, model, options):
        self.model, self.options = model, options
        self.n_entries = self.n_refused = self.n_empty = 0

    def refuse(self, path, place, cause):
        if self.n_refused + self.n_empty <= MOST_TOLD:
            between = ": " if isinstance(place, str) else ":"
            where = path if place is None else f"{path}{between}{place}"
            print(shown(f"make_documents.py: {where}: {cause}"), file=sys.stderr)

    def documents(self):
        for path in self.options.files:
            n_before = self.n_entries
            for place, entry in entries_of_file(path, self.options.read_as):
                self.n_entries += 1
                try:
                    if isinstance(entry, Refused):
                        raise entry
                    yield from documents_of_entry(self.model, entry)
                except Refused as cause:
                    self.n_refused += 1
                    self.refuse(path, place, cause)
            if self.n_entries == n_before:
                self.n_empty += 1
                self.refuse(path, None, "the file has no entry; leave it out")
        if self.refused() and not self.options.skip_refused:
            fail(f"{self.refused()}, so nothing is written; --skip-refused writes the others")

    def refused(self):
        """The counts of what is refused; "" if there is none."""
        n_files = len(self.options.files)
        counts = ((self.n_refused, f"{self.n_refused} of {self.n_entries} entries are refused"),
                  (self.n_empty, f"{self.n_empty} of {n_files} files have no entry"))
        return "; ".join(said for n, said in counts if n > 0)

    def notes(self):
        """Lines of the summary."""
        if self.refused():
            yield f"left out: {self.refused()}"
        for note, n in self.model.notes.items():
            yield f"note: {n} {note}"


# ---- writing ------------------------------------------------------------------------------


def pack(documents, seq):
    """Best fit, longest first: in this order sequences, which take documents one after the other,
    are nearly full."""
    bins, room = [], []  # room: (free places, bin), sorted
    for document in sorted(documents, key=lambda document: -len(document[0])):
        n = len(document[0])
        i = bisect.bisect_left(room, (n, 0)) if n <= seq else len(room)
        if i < len(room):
            free, chosen = room.pop(i)
        else:
            free, chosen = n + -n % seq, len(bins)
            bins.append([])
        bins[chosen].append(document)
        bisect.insort(room, (free - n, chosen))
    return [document for contents in bins for document in contents]


def count_sequences(lengths, seq):
    """As zero-train packs them."""
    n_sequences, used = 0, seq
    for n in lengths:
        if used + min(n, seq) > seq:
            n_sequences, used = n_sequences + -(-n // seq), (n - 1) % seq + 1
        else:
            used += n
    return n_sequences


def elements_of(document, is_marked):
    tokens, has_loss = document
    if not is_marked:
        return tokens
    marked = [token | (0 if has else HAS_NO_LOSS) for token, has in zip(tokens, has_loss)]
    marked[0] |= BEGINS
    return marked


def check_out(path):
    """Fail before any work where no file can be written."""
    folder = os.path.dirname(path) or "."
    if not path or os.path.isdir(path):
        fail(f"--out {path}: must be a file, not a folder")
    if not os.path.isdir(folder):
        fail(f"--out {path}: there is no folder {folder}; make it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        fail(f"--out {path}: the folder {folder} cannot be written to")


def write(path, form, documents):
    """Return the number of documents, tokens, and targets."""
    try:
        counts = write_part(path + ".part", form, documents)
    except BaseException:
        if os.path.exists(path + ".part"):
            os.unlink(path + ".part")
        raise
    os.replace(path + ".part", path)
    return counts


def write_part(path, form, documents):
    magic, version, code = FORMATS[form]
    n_documents = n_tokens = n_targets = 0
    with open(path, "wb") as file:
        file.write(bytes(1024))
        for document in documents:
            if not document[0]:
                continue
            if max(document[0]) >= (1 << 16 if code == "H" else MOST_TOKENS):
                fail(f"--format {form}: token {max(document[0])} has too many bits")
            if form != "documents" and not all(document[1]):
                fail(f"--format {form} has no marks: it takes texts alone, no conversations")
            elements = array.array(code, elements_of(document, form == "documents"))
            if sys.byteorder == "big":
                elements.byteswap()
            elements.tofile(file)
            n_documents, n_tokens = n_documents + 1, n_tokens + len(elements)
            n_targets += sum(document[1][1:])
        if n_tokens == 0:
            fail("there is no token in any document")
        if form != "documents" and n_tokens >= 1 << 31:
            fail(f"--format {form}: {n_tokens} tokens; a file has 2147483647 at most")
        file.seek(0)
        file.write(struct.pack("<2IQ", magic, version, n_tokens))
    return n_documents, n_tokens, n_targets


def tables():
    """The guide's tables."""
    kinds = [
        f"| {', '.join(f'`{suffix}`' for suffix in kind.suffixes) or 'other'} | {kind.shown} |"
        for kind in KINDS.values()
    ]
    layouts = [f"| `{layout.shown}` | {layout.targets} |" for layout in LAYOUTS]
    return "\n".join([
        "| file, also with `.gz`, `.bz2`, `.xz` | content |", "|---|---|", *kinds, "",
        "| object: the first of these whose keys it has | tokens with a loss |", "|---|---|",
        *layouts, ""
    ])


def described():
    """The description, with the tables of what is read."""
    kinds = [
        f"    {', '.join(kind.suffixes) or 'other':<16} {kind.shown}" for kind in KINDS.values()
    ]
    layouts = [f"    {layout.shown}\n        loss: {layout.targets}" for layout in LAYOUTS]
    return __doc__.replace("@KINDS@", "\n".join(kinds)).replace("@LAYOUTS@", "\n".join(layouts))


def main():
    parser = argparse.ArgumentParser(prog="make_documents.py", description=described(),
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, metavar="FOLDER", help="with tokenizer.json")
    parser.add_argument("--out", required=True, metavar="FILE",
                        help="is replaced when all is written")
    parser.add_argument("--pack", type=int, metavar="SEQ",
                        help="an order that fills sequences of SEQ tokens")
    parser.add_argument("--format", choices=FORMATS, default="documents")
    parser.add_argument("--as", dest="read_as", choices=KINDS,
                        help="what each FILE is, whatever its name")
    parser.add_argument("--skip-refused", action="store_true",
                        help="write the entries that are not refused")
    parser.add_argument("files", nargs="+", metavar="FILE")
    options = parser.parse_args()
    if options.pack is not None and options.pack < 1:
        parser.error("--pack: SEQ must be at least 1")
    check_out(options.out)
    reading = Reading(Model(options.model), options)
    documents = reading.documents()
    if options.pack is not None:
        documents = pack([document for document in documents if document[0]], options.pack)
    try:
        n_documents, n_tokens, n_targets = write(options.out, options.format, documents)
    except OSError as error:
        fail(f"--out {options.out}: cannot be written: {error.strerror or error}", 1)
    said = f"{options.out}: {n_documents} documents, {n_tokens} tokens, {n_targets} with a loss"
    if options.pack is not None:
        n = count_sequences([len(document[0]) for document in documents], options.pack)
        full = 100 * n_tokens / (n * options.pack)
        said += f"; {n} sequences of {options.pack}, {full:.1f}% full"
    print("\n".join(map(shown, [said, *reading.notes()])))


if __name__ == "__main__":
    main()
