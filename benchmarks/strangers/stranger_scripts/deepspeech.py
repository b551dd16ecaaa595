import logging

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from tick import steps

logging.basicConfig(level=logging.WARNING)
log = logging.getLogger("deepspeech")

torch.backends.cuda.matmul.allow_tf32 = True
BATCH, FRAMES, FREQS, HIDDEN, RNN_LAYERS, LABELS = 32, 1000, 161, 1024, 5, 29


class MaskConv(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x, lengths):
        for layer in self.layers:
            x = layer(x)
            if isinstance(layer, nn.Conv2d):
                lengths = (lengths + 2 * layer.padding[1] - layer.kernel_size[1]) // layer.stride[1] + 1
            mask = torch.arange(x.shape[-1], device=x.device) >= lengths.to(x.device)[:, None]
            x = x.masked_fill(mask[:, None, None], 0)
        return x, lengths


class SequenceWise(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        t, n = x.shape[:2]
        return self.module(x.reshape(t * n, -1)).view(t, n, -1)


class BatchRNN(nn.Module):
    def __init__(self, c_in, hidden, norm=True):
        super().__init__()
        self.norm = SequenceWise(nn.BatchNorm1d(c_in)) if norm else nn.Identity()
        self.rnn, self.hidden = nn.LSTM(c_in, hidden, bidirectional=True), hidden

    def forward(self, x, lengths):
        packed, _ = self.rnn(pack_padded_sequence(self.norm(x), lengths))
        x, _ = pad_packed_sequence(packed)
        return x.view(*x.shape[:2], 2, self.hidden).sum(2)


class SeparableContext(nn.Module):
    def __init__(self, c, kernel=33):
        super().__init__()
        self.depthwise = nn.Conv1d(c, c, kernel, padding=kernel // 2, groups=c, bias=False)
        self.pointwise, self.norm = nn.Conv1d(c, c, 1, bias=False), nn.BatchNorm1d(c)

    def forward(self, x):
        return x + F.relu(self.norm(self.pointwise(self.depthwise(x))))


class DeepSpeech(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = MaskConv(
            [
                nn.Conv2d(1, 32, (41, 11), (2, 2), (20, 5)),
                nn.BatchNorm2d(32),
                nn.Hardtanh(0, 20),
                nn.Conv2d(32, 32, (21, 11), (2, 1), (10, 5)),
                nn.BatchNorm2d(32),
                nn.Hardtanh(0, 20),
            ]
        )
        freqs = (FREQS + 40 - 41) // 2 + 1
        freqs = (freqs + 20 - 21) // 2 + 1
        width = freqs * 32
        self.context = nn.Sequential(SeparableContext(width), SeparableContext(width))
        self.rnns = nn.ModuleList(
            [BatchRNN(width, HIDDEN, norm=False)] + [BatchRNN(HIDDEN, HIDDEN) for _ in range(RNN_LAYERS - 1)]
        )
        self.fc = SequenceWise(nn.Sequential(nn.BatchNorm1d(HIDDEN), nn.Linear(HIDDEN, LABELS, bias=False)))

    def forward(self, x, lengths):
        x, lengths = self.conv(x, lengths)
        x = self.context(x.flatten(1, 2)).permute(2, 0, 1).contiguous()
        for rnn in self.rnns:
            x = rnn(x, lengths)
        return self.fc(x).log_softmax(-1), lengths


model = DeepSpeech().cuda()
ctc = nn.CTCLoss(blank=0, reduction="sum", zero_infinity=True)
optimizer = torch.optim.SGD(model.parameters(), lr=3e-4, momentum=0.9, nesterov=True, weight_decay=1e-5)
annealing = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9999)
average = 0.0
for i in steps(count=8):
    lengths = torch.randint(FRAMES * 3 // 4, FRAMES + 1, (BATCH,)).sort(descending=True).values
    lengths[0] = FRAMES
    spectrogram = torch.randn(BATCH, 1, FREQS, FRAMES, device="cuda")
    target_lengths = lengths // 8
    targets = torch.randint(1, LABELS, (int(target_lengths.sum()),), device="cuda")
    out, out_lengths = model(spectrogram, lengths)
    loss = ctc(out, targets, out_lengths, target_lengths) / BATCH
    value = loss.item()
    if value == float("inf") or value != value:
        log.warning("the loss is not finite at step %d", i)
        continue
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 400)
    optimizer.step()
    annealing.step()
    average = 0.98 * average + 0.02 * value
