import torch, torch.nn as nn, torch.nn.functional as F
from tick import steps

torch.backends.cuda.matmul.allow_tf32 = True


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(40000, 256)
        self.lstm = nn.LSTM(256, 512, 2, batch_first=True, bidirectional=True, dropout=0.3)
        self.head = nn.Sequential(nn.Linear(1024, 512), nn.Tanh(), nn.Dropout(0.3), nn.Linear(512, 64))

    def forward(self, x):
        h, _ = self.lstm(self.emb(x))
        return h


tag = Tagger().cuda()


@torch.compile
def head_loss(h, y):
    return F.cross_entropy(tag.head(h).flatten(0, 1), y.flatten())


opt = torch.optim.Adam(tag.parameters(), 1e-3)
for i in steps():
    x = torch.randint(0, 40000, (64, 128), device="cuda")
    y = torch.randint(0, 64, (64, 128), device="cuda")
    loss = head_loss(tag(x), y)
    loss.backward()
    nn.utils.clip_grad_norm_(tag.parameters(), 1.0)
    opt.step()
    opt.zero_grad()
