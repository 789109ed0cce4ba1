#!/usr/bin/env python3
"""Trains models/demo: a small Llama that adds numbers, sorts words, tells tiny stories, calls tools and writes JSON.

    tools/train_demo.py --tokenizer-only                    # only the tokenizer (no GPU, needs `tokenizers`)
    tools/train_demo.py --steps 20000                       # needs torch, tokenizers, safetensors, transformers, one GPU
    tools/train_demo.py --start models/demo --seconds 440   # goes on with trained weights for a fixed time

All text comes from the generators in demo_tasks.py, demo_chats.py (chats with tools) and demo_json.py with a fixed seed.
Worker processes write it as arrays of tokens while the GPU trains on earlier ones. The evaluation uses the bf16 export,
reloaded with transformers, which also shows that the files are a standard Llama.
"""

import argparse
import itertools
import json
import math
import multiprocessing
import os
import random
import shutil
import sys
import threading
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the worker processes already use all cores
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

import demo_chats
import demo_json
import demo_tasks as tasks
from demo_tasks import END, IM_END, IM_START, LETTERS, STORY

CONFIG = dict(vocab_size=4096, hidden_size=256, num_hidden_layers=8, num_attention_heads=4, num_key_value_heads=2,
              head_dim=64, intermediate_size=768, max_position_embeddings=1024, rope_theta=10000.0, rms_norm_eps=1e-5)

DEMO = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "models", "demo")

# Shares of the documents; about 63, 25 and 12 % of the tokens.
MIX = [(tasks.document, 72), (demo_chats.document, 12), (demo_json.document, 16)]

# Flags above the 12 bits of a token: weight of its prediction in the loss.
FULL, LOW = 0x8000, 0x4000
LOW_WEIGHT = 0.25


# ---- tokenizer ----

# The pre-tokenizer of Qwen2: every digit is a separate token, so that a number has only one tokenization.
QWEN2_SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
               r"|\s+(?!\S)|\s+")


def train_tokenizer(path, seed):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN2_SPLIT), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(t, special=True, normalized=False) for t in (END, IM_START, IM_END)]
    # Tokens of at most four characters (five bytes, and the space mark has two): words are made of parts
    # that many words share, so that what the model learns about the letters of a part also holds for words that it has
    # never been asked to reverse.
    trainer = trainers.BpeTrainer(vocab_size=CONFIG["vocab_size"], special_tokens=special, max_token_length=5,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    rng = random.Random(seed)

    def corpus():
        # Prompt and answer are separate texts: no token may span the end of a prompt ("=" and "-34").
        for _ in range(40000):
            for text, _, style in tasks.document(rng):
                if style != LETTERS:
                    for mark in (IM_START, IM_END):
                        text = text.replace(mark, "\n")
                    yield text
        # Made-up words add syllables to the vocabulary, for text outside the training data.
        for _ in range(30000):
            yield f" {tasks.made_up_word(rng)} {rng.choice(tasks.WORDS).capitalize()}"
    tokenizer.train_from_iterator(corpus(), trainer)
    assert tokenizer.get_vocab_size() == CONFIG["vocab_size"], tokenizer.get_vocab_size()
    tokenizer.save(path)


def write_texts(out):
    """Writes the files other than the weights."""
    tokenizer = Tokenizer.from_file(os.path.join(out, "tokenizer.json"))
    end, im_end = tokenizer.token_to_id(END), tokenizer.token_to_id(IM_END)
    config = dict(architectures=["LlamaForCausalLM"], model_type="llama", **CONFIG, hidden_act="silu",
                  attention_bias=False, mlp_bias=False, attention_dropout=0.0, initializer_range=0.02,
                  tie_word_embeddings=True, use_cache=True, torch_dtype="bfloat16", bos_token_id=end,
                  eos_token_id=im_end, pad_token_id=end)
    generation = dict(bos_token_id=end, pad_token_id=end, eos_token_id=[im_end, end])
    decoder = {str(i): dict(content=t, lstrip=False, normalized=False, rstrip=False, single_word=False, special=True)
               for i, t in enumerate((END, IM_START, IM_END))}
    tokenizer_config = dict(tokenizer_class="PreTrainedTokenizerFast", add_bos_token=False,
                            added_tokens_decoder=decoder, bos_token=END, eos_token=IM_END, pad_token=END,
                            clean_up_tokenization_spaces=False, model_max_length=CONFIG["max_position_embeddings"])
    for name, content in (("config.json", config), ("generation_config.json", generation),
                          ("tokenizer_config.json", tokenizer_config)):
        with open(os.path.join(out, name), "w") as f:
            json.dump(content, f, indent=2)
            f.write("\n")
    if os.path.realpath(out) != os.path.realpath(DEMO):
        shutil.copy(os.path.join(DEMO, "chat_template.jinja"), out)


# ---- data ----

class Encoder:
    """Converts documents to arrays of tokens with flags."""

    def __init__(self, path):
        self.tokenizer = Tokenizer.from_file(path)
        self.end = self.tokenizer.token_to_id(END)
        # Letters and hyphens are themselves as byte-level characters, a space is U+0120.
        self.letters = {c: self.tokenizer.token_to_id(c.replace(" ", "\u0120"))
                        for c in "abcdefghijklmnopqrstuvwxyz- "}

    def documents(self, count, rng):
        makers = rng.choices([make for make, _ in MIX], [share for _, share in MIX], k=count)
        docs = [make(rng) for make in makers]
        texts = list({text for doc in docs for text, _, style in doc if style != LETTERS})
        encodings = self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        ids = {text: e.ids for text, e in zip(texts, encodings)}
        for doc in docs:
            tokens = []
            for text, learn, style in doc:
                if style == LETTERS:
                    part, flag = [self.letters[c] for c in text], FULL
                else:
                    part = ids[text]
                    # Parts of prompts, where `learn` is random, and stories cannot be predicted exactly: a lower weight
                    # keeps them from dominating the loss of the answers, which can.
                    flag = LOW if style == STORY or learn == "low" else FULL
                tokens += [t | flag for t in part] if learn else part
            tokens.append(self.end | FULL)
            yield tokens


_encoder = None


def _start_worker(path):
    global _encoder
    _encoder = Encoder(path)


def make_shard(job):
    """An array of `rows` rows of length + 1 tokens. A row begins with a document, every other one after the end token:
    a prompt must work at the very beginning, with and without it. Then documents follow each other, and each sees all
    before it: so all positions are trained, and the model learns to leave alone what is not its business."""
    seed, rows, length = job
    rng = random.Random(seed)
    out = np.zeros((rows, length + 1), np.uint16)
    row, fill, docs = 0, 0, iter(())
    while row < rows:
        doc = next(docs, None)
        if doc is None:
            docs = _encoder.documents(2000, rng)
            continue
        if fill == 0 and rng.random() < 0.5:
            fill = 1  # id 0 is the end token
        part = doc[:length + 1 - fill]
        out[row, fill:fill + len(part)] = part
        fill += len(part)
        if fill == length + 1:
            row, fill = row + 1, 0
    return out


def shard_jobs(seed, batches, batch_tokens, room):
    """Without end. `room`: a semaphore, so that the workers stay a little ahead of the GPU; closed, it ends the jobs."""
    for i in itertools.count():
        room.acquire()
        if room.closed:
            return
        # Short rows as well: the first document of a row has no context, like most prompts.
        length = 1024 if i % 2 else 256
        yield (f"{seed}/{i}", batches * batch_tokens // length, length)


# ---- model ----

def build_model(torch):
    nn, F = torch.nn, torch.nn.functional
    c = CONFIG
    dim, heads, kv_heads, head_dim = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]

    class RMSNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(dim))

        def forward(self, x):
            x32 = x.float()
            return x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + c["rms_norm_eps"]) * self.weight

    def rotate(x, cos, sin):  # x: [batch, heads, length, head_dim]; halves, not pairs, as Hugging Face stores it
        x32 = x.float()
        a, b = x32.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)

    def linear(i, o):
        return nn.Linear(i, o, bias=False)

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q_proj, self.o_proj = linear(dim, heads * head_dim), linear(heads * head_dim, dim)
            self.k_proj, self.v_proj = linear(dim, kv_heads * head_dim), linear(dim, kv_heads * head_dim)

        def forward(self, x, cos, sin):
            b, t, _ = x.shape
            q = self.q_proj(x).view(b, t, heads, head_dim).transpose(1, 2)
            k = self.k_proj(x).view(b, t, kv_heads, head_dim).transpose(1, 2)
            v = self.v_proj(x).view(b, t, kv_heads, head_dim).transpose(1, 2)
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            return self.o_proj(y.transpose(1, 2).reshape(b, t, heads * head_dim))

    class MLP(nn.Module):
        def __init__(self):
            super().__init__()
            inner = c["intermediate_size"]
            self.gate_proj, self.up_proj, self.down_proj = linear(dim, inner), linear(dim, inner), linear(inner, dim)

        def forward(self, x):
            return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.input_layernorm, self.post_attention_layernorm = RMSNorm(), RMSNorm()
            self.self_attn, self.mlp = Attention(), MLP()

        def forward(self, x, cos, sin):
            x = x + self.self_attn(self.input_layernorm(x), cos, sin)
            return x + self.mlp(self.post_attention_layernorm(x))

    class Llama(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed_tokens = nn.Embedding(c["vocab_size"], dim)
            self.layers = nn.ModuleList(Layer() for _ in range(c["num_hidden_layers"]))
            self.norm = RMSNorm()
            inverse = c["rope_theta"] ** (-torch.arange(0, head_dim, 2).float() / head_dim)
            angles = torch.outer(torch.arange(c["max_position_embeddings"]).float(), inverse)
            self.register_buffer("cos", angles.cos(), persistent=False)
            self.register_buffer("sin", angles.sin(), persistent=False)
            for name, p in self.named_parameters():
                if p.dim() == 2:
                    residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                    nn.init.normal_(p, std=0.02 / math.sqrt(2 * c["num_hidden_layers"]) if residual else 0.02)

        def forward(self, ids):
            t = ids.shape[1]
            x = self.embed_tokens(ids)
            for layer in self.layers:
                x = layer(x, self.cos[:t], self.sin[:t])
            return F.linear(self.norm(x), self.embed_tokens.weight)

    return Llama()


def read_weights(model, directory, torch):
    from safetensors.torch import load_file
    tensors = load_file(os.path.join(directory, "model.safetensors"))
    model.load_state_dict({name.removeprefix("model."): t.float() for name, t in tensors.items()})


def loss_of(model, torch, device):
    """The loss of a batch of rows with flags, compiled where there is a GPU."""
    F = torch.nn.functional

    def loss_function(tokens):
        tokens = tokens.long()
        ids, targets = tokens[:, :-1] & 0xFFF, tokens[:, 1:]
        weights = (targets & FULL).ne(0).float() + LOW_WEIGHT * (targets & LOW).ne(0).float()
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(ids)
        loss = F.cross_entropy(logits.float().flatten(0, 1), (targets & 0xFFF).flatten(), reduction="none")
        return (loss * weights.flatten()).sum() / weights.sum()
    return torch.compile(loss_function, dynamic=False) if device == "cuda" else loss_function


def train(args, torch, device):
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    model = build_model(torch)
    if args.start:
        read_weights(model, args.start, torch)
    model.to(device)
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters on {name}", flush=True)
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([dict(params=matrices, weight_decay=0.1), dict(params=vectors, weight_decay=0.0)],
                                  lr=args.lr, betas=(0.9, 0.98), fused=device == "cuda")
    loss_function = loss_of(model, torch, device)
    room = threading.Semaphore(4 * args.workers)
    room.closed = False
    log, recent, step, start, waited, printed = [], [], 0, time.time(), 0.0, 0.0
    path = os.path.join(args.out, "tokenizer.json")
    with multiprocessing.get_context("spawn").Pool(args.workers, _start_worker, (path,)) as pool:
        shard_stream = pool.imap(make_shard, shard_jobs(args.seed, args.shard_batches, args.batch_tokens, room))
        done = 0.0  # the share of the training that is over
        while done < 1.0:
            t = time.time()
            shard = next(shard_stream)
            room.release()
            waited += time.time() - t
            shard = torch.from_numpy(shard.astype(np.int32)).to(device)
            for batch in shard.chunk(args.shard_batches):
                done = max(step / args.steps, (time.time() - start) / args.seconds)
                cosine = 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
                for group in optimizer.param_groups:
                    group["lr"] = args.lr * min(1.0, (step + 1) / 300) * (0.01 + 0.99 * cosine)
                loss = loss_function(batch)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                recent.append(loss.detach())
                step += 1
                if step == args.steps:
                    break
            if len(recent) >= 200 or time.time() - start - printed >= 15 or done >= 1.0:
                # item() also waits for the GPU, so that the time is not that of steps that are only queued.
                value, recent = torch.stack(recent).mean().item(), []
                printed = time.time() - start
                log.append((step, round(value, 4), round(printed, 1)))
                print(f"step {step:6} loss {value:.4f} {printed:6.1f} s, waited for data {waited:.1f} s", flush=True)
            done = max(step / args.steps, (time.time() - start) / args.seconds)
        room.closed = True
        room.release()
    return model, dict(steps=step, seconds=round(time.time() - start, 1), tokens=step * args.batch_tokens, loss=log,
                       gpu=name)


def export(model, out, torch):
    from safetensors.torch import save_file
    tensors = {"model." + name: p.detach().to(torch.bfloat16).contiguous().cpu()
               for name, p in model.named_parameters()}
    save_file(tensors, os.path.join(out, "model.safetensors"), metadata={"format": "pt"})
    return tensors


# ---- evaluation of the export ----

def check_template(out, tokenizer):
    """The documents with tools are what chat_template.jinja writes."""
    rng = random.Random(11)
    for _ in range(300):
        specs, messages = demo_chats.chat(rng)
        text = "".join(t for t, _, _ in demo_chats.parts_of(specs, messages))
        sent = demo_chats.template_messages(messages)
        for m in sent:  # transformers passes arguments as they are: most templates expect an object
            for call in m.get("tool_calls", ()):
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        rendered = tokenizer.apply_chat_template(sent, tools=specs or None, tokenize=False)
        assert rendered == text, (rendered, text)
    for case in demo_chats.evaluation_tools():
        rendered = tokenizer.apply_chat_template(demo_chats.template_messages(case["messages"]), tools=case["tools"],
                                                 tokenize=False, add_generation_prompt=True)
        assert rendered == demo_chats.prompt_text(case), (rendered, demo_chats.prompt_text(case))


def cases_of_new_tasks():
    """(group, prompt, answer) as text."""
    cases = [(c["group"], demo_chats.prompt_text(c), demo_chats.calls_text(c["calls"]) if "calls" in c else c["answer"])
             for c in demo_chats.evaluation_tools()]
    for group, question, value in demo_json.evaluation_json():
        if group == "JSON in words":
            cases.append((group, tasks.chat_prompt(question), demo_json.dumps(value)))
    return cases


def evaluate(out, torch, device, stories=64, reference=None, share=1.0):
    """Accuracy of the exported files, read by transformers, greedy; and that our model computes the same."""
    from transformers import AutoTokenizer, LlamaForCausalLM
    tokenizer = AutoTokenizer.from_pretrained(out)
    tokenizer.padding_side = "left"
    model = LlamaForCausalLM.from_pretrained(out, dtype=torch.bfloat16).to(device).eval()
    report = {}

    messages = [dict(role="user", content="What is 12 + 34?")]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert rendered == tasks.chat_prompt("What is 12 + 34?"), rendered
    check_template(out, tokenizer)
    plain_tokenizer = Tokenizer.from_file(os.path.join(out, "tokenizer.json"))
    assert tokenizer(rendered).input_ids == plain_tokenizer.encode(rendered).ids

    if reference is not None:
        exact = LlamaForCausalLM.from_pretrained(out, dtype=torch.float32).to(device).eval()
        torch.set_float32_matmul_precision("highest")
        ours = build_model(torch).to(device)
        ours.load_state_dict({k.removeprefix("model."): v.float() for k, v in reference.items()})
        ids = torch.randint(0, CONFIG["vocab_size"], (2, 1024), device=device)
        with torch.no_grad():
            a, b = ours(ids), exact(ids).logits
        report["float32 logits, ours against transformers, relative"] = float((a - b).norm() / b.norm())

    def generate(prompts, limit, **options):
        texts = []
        for i in range(0, len(prompts), 500):
            batch = tokenizer(prompts[i:i + 500], return_tensors="pt", padding=True).to(device)
            batch.pop("token_type_ids", None)
            with torch.no_grad():
                ids = model.generate(**batch, max_new_tokens=limit, **options)
            texts += tokenizer.batch_decode(ids[:, batch["input_ids"].shape[1]:], skip_special_tokens=True)
        return texts

    wrong, groups = [], {}
    for cases, limit in ((tasks.evaluation_sums(1000), 8), (tasks.evaluation_words(), 40), (tasks.evaluation_long(100), 8),
                         (cases_of_new_tasks(), 100)):
        cases = cases[::round(1 / share)]
        answers = generate([prompt for _, prompt, _ in cases], limit, do_sample=False)
        for (group, prompt, expected), answer in zip(cases, answers):
            right, total = groups.get(group, (0, 0))
            ok = answer.strip() == expected
            groups[group] = (right + ok, total + 1)
            if not ok:
                wrong.append((group, prompt, expected, answer))
    report["accuracy"] = {group: f"{right}/{total}" for group, (right, total) in groups.items()}
    sums = [v for g, v in groups.items() if "digit" in g]
    report["sums"] = sum(r for r, _ in sums) / sum(t for _, t in sums)
    print(json.dumps(report), flush=True)
    for case in random.Random(0).sample(wrong, min(40, len(wrong))):
        print("wrong:", case, flush=True)
    torch.manual_seed(7)
    prompts = tasks.evaluation_stories(stories)
    texts = generate([p for p, _ in prompts], 400, do_sample=True, temperature=0.7, top_k=0, top_p=1.0)
    report["stories that name their topic"] = sum(t in text for (_, t), text in zip(prompts, texts)) / len(texts)
    report["a sampled story"] = texts[0]
    report["story word share"] = tasks.story_word_share(texts)
    report["story tokens"] = sorted(len(tokenizer(t).input_ids) for t in texts)[::8]
    report["stories that end"] = sum(t.rstrip().endswith((".", "!", "\"", "?")) for t in texts) / len(texts)
    messages = ["What is 12 + 34?", "What is 123 - 456?", "What is 12 + 34? Answer in JSON.", "Hello!", "Who are you?",
                "What is 3 * 4?", "What is the capital of France?", "Reverse the word: planet", "Spell planet.",
                "Sort these words: pear, apple, fig", "Count from 1 to 10.", "Tell me a story about a cat.",
                "Tell me a story about a boat.", "Tell me a story about a computer."]
    samples = ["12 + 34 =", "123+45=", "23 - 57 =", END + "900-1=", "cat backwards is", "Once upon a time"]
    samples += [tasks.chat_prompt(m) for m in messages]
    report["samples"] = list(zip(samples, generate(samples, 250, do_sample=False)))
    return report


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", default=DEMO)
    parser.add_argument("--start", metavar="DIR", help="begin with the weights of this model")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=20000)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--batch-tokens", type=int, default=65536)
    parser.add_argument("--shard-batches", type=int, default=8, help="batches that a worker writes at once")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--seconds", type=float, default=1e9, help="end after this time; the learning rate follows it")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--evaluate-share", type=float, default=1.0, help="share of the evaluation's cases")
    parser.add_argument("--tokenizer-only", action="store_true")
    parser.add_argument("--evaluate-only", action="store_true")
    parser.add_argument("--report", help="write measurements to this file (JSON)")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    path = os.path.join(args.out, "tokenizer.json")
    if args.tokenizer_only or not os.path.exists(path):
        train_tokenizer(path, args.seed)
    write_texts(args.out)
    if args.tokenizer_only:
        return
    import torch
    report, tensors = {}, None
    if not args.evaluate_only:
        model, report = train(args, torch, args.device)
        tensors = export(model, args.out, torch)
        print("exported", flush=True)
    share = args.evaluate_share
    report.update(evaluate(args.out, torch, args.device, max(2, round(64 * share)), tensors, share))
    print(json.dumps(dict(report, loss=report.get("loss", [])[-1:]), indent=1))
    if args.report:
        with open(args.report, "w") as f:
            json.dump(report, f, indent=1)


if __name__ == "__main__":
    main()
