import timm, torch, torch.nn as nn, torch.nn.functional as F
from transformers import Blip2QFormerConfig, Blip2QFormerModel, OPTConfig, OPTForCausalLM
from tick import steps

BATCH, QUERIES, WORDS = 128, 32, 32


class Captioner(nn.Module):
    def __init__(self):
        super().__init__()
        self.vision = timm.create_model("vit_large_patch14_clip_224", num_classes=0)
        config = Blip2QFormerConfig(
            hidden_size=768, num_hidden_layers=12, encoder_hidden_size=1024, cross_attention_frequency=2
        )
        self.qformer = Blip2QFormerModel(config)
        self.queries = nn.Parameter(torch.randn(1, QUERIES, 768) * 0.02)
        self.ln_vision = nn.LayerNorm(1024)
        self.lm = OPTForCausalLM(OPTConfig(hidden_size=768, ffn_dim=3072, num_hidden_layers=12, num_attention_heads=12))
        self.project = nn.Linear(768, 768)
        self.vision.requires_grad_(False).eval()
        self.lm.requires_grad_(False).eval()
        self.seen = {}
        self.vision.blocks[-2].register_forward_hook(self.keep)
        for block in self.vision.blocks:
            block.compile()

    def keep(self, module, args, output):
        self.seen["penultimate"] = output

    def train(self, mode=True):
        self.qformer.train(mode)
        return self

    def forward(self, pixels, ids, mask):
        with torch.no_grad():
            self.vision.forward_features(pixels)
        patches = self.ln_vision(self.seen["penultimate"].float())
        hidden = self.qformer(
            query_embeds=self.queries.expand(len(pixels), -1, -1), encoder_hidden_states=patches
        ).last_hidden_state
        prefix = self.project(hidden)
        embeds = torch.cat([prefix, self.lm.get_input_embeddings()(ids).to(prefix.dtype)], 1)
        mask = torch.cat([mask.new_ones(len(ids), QUERIES), mask], 1)
        logits = self.lm(inputs_embeds=embeds, attention_mask=mask).logits[:, QUERIES:-1]
        target = ids[:, 1:].masked_fill(mask[:, QUERIES + 1 :] == 0, -100)
        return F.cross_entropy(logits.float().flatten(0, 1), target.flatten(), ignore_index=-100)


with torch.device("cuda"):
    model = Captioner()
model.train()
trained = [p for p in model.parameters() if p.requires_grad]
decay = [p for p in trained if p.ndim > 1]
plain = [p for p in trained if p.ndim <= 1]
groups = [{"params": decay, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.98))
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000, 1e-5)
for i in steps():
    pixels = torch.randn(BATCH, 3, 224, 224, device="cuda")
    ids = torch.randint(4, 50000, (BATCH, WORDS), device="cuda")
    lengths = torch.randint(8, WORDS + 1, (BATCH, 1), device="cuda")
    mask = (torch.arange(WORDS, device="cuda") < lengths).long()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(pixels, ids, mask)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    if i % 10 == 0:
        print(f"step {i} loss {loss.item():.3f}")
