"""Small models that tests train, with their batches. A batch is for all ranks together; each takes its part."""

import itertools

import torch
from torch import nn

N_ROWS = 4  # sequences or images of a batch, over all ranks


class Odd(nn.Module):
    """Tied, frozen, unused, zero-sized, scalar and large-rank parameters; one used outside its module; a module
    that is called twice; an output that is a parameter."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8, padding_idx=3)
        self.frozen = nn.Linear(8, 8)
        self.frozen.requires_grad_(False)
        self.twice = nn.Linear(8, 8)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)) for _ in range(2))
        self.by_name = nn.ModuleDict({"a": nn.Linear(8, 8), "b": nn.LayerNorm(8)})
        self.unused = nn.Linear(3, 3)
        self.some_unused = nn.ParameterDict({"used": torch.ones(8), "not": torch.ones(5)})
        self.nothing = nn.Parameter(torch.empty(0, 4))
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.five = nn.Parameter(torch.randn(2, 1, 2, 1, 2))
        self.bias = Given(8)
        self.outside = nn.Linear(8, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        x = x + self.frozen(x)
        x = self.twice(torch.tanh(self.twice(x)))
        for block in self.blocks:
            x = x + block(x)
        x = self.by_name["b"](self.by_name["a"](x)) * self.some_unused["used"]
        x = x * self.scale + self.five.reshape(8) + self.nothing.sum()
        x = x + self.bias()
        x = x @ self.outside.weight.t() + self.outside.bias
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), tokens.roll(1, 1).flatten())


class Given(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.value = nn.Parameter(torch.linspace(-1, 1, n))

    def forward(self):
        return self.value


class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3, stride=2),
            nn.GELU(), nn.ConvTranspose2d(8, 4, 2), nn.Flatten())
        self.head = nn.Linear(4 * 4 * 4, 5)

    def forward(self, images, labels):
        return nn.functional.cross_entropy(self.head(self.layers(images)), labels)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 33), nn.ReLU(), nn.Linear(33, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, x, y):
        return (self.layers(x) - y).square().mean()  # torch 2.4 has no mse_loss in bf16


class Causal(nn.Module):
    """A model of transformers, with its own loss."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens):
        return self.model(input_ids=tokens, labels=tokens, use_cache=False).loss


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    return Causal(GPT2LMHeadModel(GPT2Config(
        vocab_size=61, n_positions=16, n_embd=16, n_layer=3, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
        bos_token_id=0, eos_token_id=0)))


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    return Causal(LlamaForCausalLM(LlamaConfig(
        vocab_size=61, hidden_size=16, intermediate_size=40, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=16)))


def _decoder(config_name, model_name, **more):
    import transformers

    config = getattr(transformers, config_name)(**{
        "vocab_size": 61, "hidden_size": 16, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 16, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None,
        **more})
    return Causal(getattr(transformers, model_name)(config))


def qwen3():
    return _decoder("Qwen3Config", "Qwen3ForCausalLM", head_dim=8, tie_word_embeddings=True)


def mistral():
    return _decoder("MistralConfig", "MistralForCausalLM", sliding_window=8)


def mixtral():
    return _decoder("MixtralConfig", "MixtralForCausalLM", num_local_experts=4, num_experts_per_tok=2)


class Masked(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens):
        return self.model(input_ids=tokens, labels=tokens).loss


def bert():
    from transformers import BertConfig, BertForMaskedLM

    return Masked(BertForMaskedLM(BertConfig(
        vocab_size=61, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=16, hidden_dropout_prob=0, attention_probs_dropout_prob=0)))


def t5():
    from transformers import T5Config, T5ForConditionalGeneration

    return Masked(T5ForConditionalGeneration(T5Config(
        vocab_size=61, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, dropout_rate=0,
        decoder_start_token_id=0)))


class Classified(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, images, labels):
        return nn.functional.cross_entropy(self.model(pixel_values=images).logits, labels)


def vit():
    from transformers import ViTConfig, ViTForImageClassification

    return Classified(ViTForImageClassification(ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=8, patch_size=4,
        hidden_dropout_prob=0, attention_probs_dropout_prob=0, num_labels=5)))


def _images(generator):
    return torch.randn(N_ROWS, 3, 8, 8, generator=generator), torch.randint(5, (N_ROWS,), generator=generator)


def _vectors(generator):
    return torch.randn(N_ROWS, 8, generator=generator), torch.randn(N_ROWS, 4, generator=generator)


def _tokens(n_words):
    return lambda generator: (torch.randint(n_words, (N_ROWS, 12), generator=generator),)


#: Name: how it is made, and how a batch of it is.
MODELS = {
    "mlp": (Mlp, _vectors),
    "conv": (Conv, _images),
    "odd": (Odd, _tokens(11)),
    "gpt2": (gpt2, _tokens(61)),
    "llama": (llama, _tokens(61)),
    "qwen3": (qwen3, _tokens(61)),
    "mistral": (mistral, _tokens(61)),
    "mixtral": (mixtral, _tokens(61)),
    "bert": (bert, _tokens(61)),
    "t5": (t5, _tokens(61)),
    "vit": (vit, _images),
}
#: Those that every run of the tests trains; the others are of the whole matrix.
USUAL = ("conv", "odd", "gpt2", "llama")


def make(name):
    torch.manual_seed(7)
    return MODELS[name][0]()


def batches(name, rank, n_ranks, seed=1):
    """Two batches, again and again without end: this rank's part of each."""
    generator = torch.Generator().manual_seed(seed)
    n = N_ROWS // n_ranks
    both = [tuple(t[rank * n : (rank + 1) * n] for t in MODELS[name][1](generator)) for _ in range(2)]
    yield from itertools.cycle(both)


def tiny_tokenizer(text):
    """A tokenizer of transformers that was trained on the text."""
    import tokenizers
    import transformers

    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel()
    tokenizer.train_from_iterator([text], tokenizers.trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def save_tiny_llama(folder, text):
    """A folder of Hugging Face with a small Llama and a tokenizer that was trained on the text."""
    import transformers

    tokenizer = tiny_tokenizer(text)
    tokenizer.save_pretrained(folder)
    transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32)).save_pretrained(folder)
