import torch
from transformers import Wav2Vec2Config, Wav2Vec2ForCTC
from tick import steps

cfg = Wav2Vec2Config(num_hidden_layers=6, mask_time_prob=0.0, layerdrop=0.0, vocab_size=40)
m = Wav2Vec2ForCTC(cfg).cuda()
m.freeze_feature_encoder()
m.wav2vec2.encoder = torch.compile(m.wav2vec2.encoder)
opt = torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], 1e-4)
for i in steps():
    x = torch.randn(8, 80000, device="cuda")
    y = torch.randint(1, 40, (8, 30), device="cuda")
    with torch.autocast("cuda", torch.float16):
        loss = m(x, labels=y).loss
    opt.zero_grad()
    loss.backward()
    opt.step()
