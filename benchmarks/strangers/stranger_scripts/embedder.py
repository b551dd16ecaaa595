import random
import torch
import torch.nn.functional as F
from transformers import BertConfig, BertModel
from tick import steps

BUCKETS, TOKENS = (64, 128, 256, 512), 32768

config = BertConfig(
    hidden_size=768, num_hidden_layers=6, num_attention_heads=12, intermediate_size=3072, attn_implementation="sdpa"
)
model = BertModel(config, add_pooling_layer=False).half().cuda().eval()
model = torch.compile(model, mode="reduce-overhead", dynamic=False)
rng = random.Random(0)


def documents(n):
    return [[rng.randrange(1000, 30000) for _ in range(rng.randint(lo, hi))] for lo, hi in n]


corpus = {}
for low, high in zip((16, *BUCKETS), BUCKETS):
    corpus[high] = documents([(low + 1, high)] * (TOKENS // high))


def encode(texts, length):
    ids = torch.zeros(len(texts), length, dtype=torch.long)
    mask = torch.zeros(len(texts), length, dtype=torch.long)
    for row, text in enumerate(texts):
        ids[row, : len(text)] = torch.tensor(text)
        mask[row, : len(text)] = 1
    return ids.pin_memory(), mask.pin_memory()


batches = [(length, *encode(texts, length)) for length, texts in corpus.items()]


@torch.inference_mode()
def embed(ids, mask):
    ids, mask = ids.to("cuda", non_blocking=True), mask.to("cuda", non_blocking=True)
    hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
    m = mask.unsqueeze(-1).to(hidden.dtype)
    pooled = (hidden * m).sum(1) / m.sum(1).clamp(min=1e-9)
    return F.normalize(pooled.float(), p=2, dim=1)


for i in steps():
    out = []
    for length, ids, mask in batches:
        out.append(embed(ids, mask).cpu())
    vectors = torch.cat(out)
