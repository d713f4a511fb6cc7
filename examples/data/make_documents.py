#!/usr/bin/env python3
"""Make a document file for zero-train --data (docs/guide/fine-tune.md, "Data") with the tokenizer of a Hugging Face model.

    python3 examples/data/make_documents.py --model MODEL --out train.bin [--pack SEQ] FILE...

MODEL is a folder with tokenizer.json and, if it is there, tokenizer_config.json and chat_template.jinja. A FILE
that ends in .jsonl has an object in each line:

    {"text": "..."}                                             all tokens have a loss
    {"messages": [{"role": "user", "content": "..."}, ...]}     those of the assistant's turns have

Any other FILE is one document of text. A text is ended by the model's end token (eos_token). Conversations go
through the chat template, which says itself how a turn ends.

--format gpt2 or llama writes llm.c's token files instead, of texts alone: 16 or 32 bits per token, one row.

Needs tokenizers and, for conversations, jinja2.
"""

import argparse
import array
import bisect
import json
import os
import struct
import sys
import time

BEGINS, HAS_NO_LOSS, MOST_TOKENS = 1 << 30, 1 << 31, 1 << 30
FORMATS = {"documents": (20261123, 1, "I"), "gpt2": (20240520, 1, "H"), "llama": (20240801, 7, "I")}


def fail(message):
    sys.exit(f"make_documents.py: {message}")


# ---- chat templates ---------------------------------------------------------------------------


def compile_template(source):
    """As transformers compiles one."""
    try:
        import jinja2
        import jinja2.ext
        import jinja2.sandbox
    except ImportError:
        fail("conversations need jinja2: pip install jinja2")

    class Generation(jinja2.ext.Extension):
        """{% generation %}: what it marks is found without it."""

        tags = {"generation"}

        def parse(self, parser):
            next(parser.stream)
            return parser.parse_statements(["name:endgeneration"], drop_needle=True)

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
    return environment.from_string(source)


class Model:
    """A folder's tokenizer and template."""

    def __init__(self, folder):
        try:
            import tokenizers
        except ImportError:
            fail("the tokenizer needs tokenizers: pip install tokenizers")
        path = os.path.join(folder, "tokenizer.json")
        if not os.path.exists(path):
            fail(f"--model {folder}: there is no tokenizer.json in it")
        self.folder = folder
        self.tokenizer = tokenizers.Tokenizer.from_file(path)
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()
        self.config = self.read_json("tokenizer_config.json")
        self.template = None
        self.texts = {name: self.text_of(name) for name in ("bos_token", "eos_token", "pad_token", "unk_token")}

    def read_json(self, name):
        path = os.path.join(self.folder, name)
        if not os.path.exists(path):
            return {}
        with open(path, encoding="utf-8") as file:
            return json.load(file)

    def text_of(self, name):
        token = self.config.get(name)
        return token.get("content") if isinstance(token, dict) else token

    def find_template(self):
        path = os.path.join(self.folder, "chat_template.jinja")
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                return file.read()
        source = self.config.get("chat_template")
        if isinstance(source, list):  # several, by name
            source = {entry["name"]: entry["template"] for entry in source}.get("default")
        if not source:
            fail(f"--model {self.folder}: conversations need a chat template, chat_template.jinja or chat_template of "
                 "tokenizer_config.json")
        return source

    def render(self, messages, prompts):
        if self.template is None:
            self.template = compile_template(self.find_template())
        texts = {name: text for name, text in self.texts.items() if text is not None}
        return self.template.render(messages=messages, add_generation_prompt=prompts, tools=None, documents=None,
                                    **texts)

    def text(self, text):
        """Tokens, and which have a loss."""
        tokens = self.tokenizer.encode(text).ids
        end = self.texts["eos_token"]
        if end is not None:
            end = self.tokenizer.token_to_id(end)
            if end is not None and tokens[-1:] != [end]:
                tokens.append(end)
        return tokens, [True] * len(tokens)

    def marked(self, text, spans):
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        has_loss = [any(begin <= start < end for begin, end in spans) for start, _ in encoding.offsets]
        return encoding.ids, has_loss

    def conversation(self, messages):
        """Documents: the assistant's turns are what the template adds to what came before and asks for one. Where it
        writes turns otherwise when there are later ones (without their thoughts), each is a document of its own."""
        text, turns = self.render(messages, False), []
        for i, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before, after = self.render(messages[:i], True), self.render(messages[:i + 1], False)
            if not after.startswith(before):
                raise ValueError(f"the chat template does not go on from what came before message {i}: which tokens "
                                 "are the assistant's cannot be told")
            turns.append((after, (len(before), len(after.rstrip()))))
        if all(text.startswith(after.rstrip()) for after, _ in turns):
            return [self.marked(text, [span for _, span in turns])]
        return [self.marked(after, [span]) for after, span in turns]


# ---- what is read and written -----------------------------------------------------------------


def documents_of(model, paths):
    for path in paths:
        with open(path, encoding="utf-8") as file:
            if not path.endswith(".jsonl"):
                yield model.text(file.read())
                continue
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    entry = json.loads(line)
                    if "messages" in entry:
                        yield from model.conversation(entry["messages"])
                    elif isinstance(entry.get("text"), str):
                        yield model.text(entry["text"])
                    else:
                        raise ValueError('an object with "text" or "messages" is needed')
                except Exception as error:  # of JSON, of the template, ours
                    fail(f"{path}:{number}: {error}")


def pack(documents, seq):
    """Best fit, longest first: in this order sequences, which take documents one after the other, are nearly full."""
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


def write(path, form, documents):
    """Return the number of documents, tokens, and targets."""
    magic, version, code = FORMATS[form]
    n_documents = n_tokens = n_targets = 0
    with open(path + ".part", "wb") as file:
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
    os.replace(path + ".part", path)
    return n_documents, n_tokens, n_targets


def main():
    parser = argparse.ArgumentParser(prog="make_documents.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, metavar="FOLDER", help="with tokenizer.json")
    parser.add_argument("--out", required=True, metavar="FILE", help="is replaced when all is written")
    parser.add_argument("--pack", type=int, metavar="SEQ", help="an order that fills sequences of SEQ tokens")
    parser.add_argument("--format", choices=FORMATS, default="documents")
    parser.add_argument("files", nargs="+", metavar="FILE")
    options = parser.parse_args()
    if options.pack is not None and options.pack < 1:
        parser.error("--pack: SEQ must be at least 1")
    documents = documents_of(Model(options.model), options.files)
    if options.pack is not None:
        documents = pack([document for document in documents if document[0]], options.pack)
    n_documents, n_tokens, n_targets = write(options.out, options.format, documents)
    said = f"{options.out}: {n_documents} documents, {n_tokens} tokens, {n_targets} with a loss"
    if options.pack is not None:
        n = count_sequences([len(document[0]) for document in documents], options.pack)
        said += f"; {n} sequences of {options.pack}, {100 * n_tokens / (n * options.pack):.1f}% full"
    print(said)


if __name__ == "__main__":
    main()
