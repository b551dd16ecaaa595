import copy
import torch
import torch.nn as nn
import torch.nn.functional as F
from tick import steps

torch.backends.cudnn.benchmark = True
BITS_W, BITS_A = 8, 4


class LSQ(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale, qn, qp):
        ctx.save_for_backward(x, scale)
        ctx.bounds = qn, qp
        return (x / scale).round().clamp(qn, qp) * scale

    @staticmethod
    def backward(ctx, g):
        x, scale = ctx.saved_tensors
        qn, qp = ctx.bounds
        q = x / scale
        low, high = q < qn, q > qp
        inside = ~(low | high)
        step = torch.where(low, float(qn), torch.where(high, float(qp), q.round() - q))
        gs = (g * step).sum() / (x.numel() * qp) ** 0.5
        return g * inside, gs.reshape(scale.shape), None, None


class QuantAct(nn.Module):
    enabled = True

    def __init__(self, bits=BITS_A):
        super().__init__()
        self.qp = 2**bits - 1
        self.scale = nn.Parameter(torch.tensor(0.2))

    def forward(self, x):
        return LSQ.apply(x, self.scale, 0, self.qp) if self.enabled else x


class QuantConv2d(nn.Conv2d):
    enabled = True

    def __init__(self, i, o, k, stride=1, signed_input=False):
        super().__init__(i, o, k, stride, k // 2, bias=False)
        self.act = nn.Identity() if signed_input else QuantAct()
        self.register_buffer("zero", torch.zeros(o, dtype=torch.int32))

    def forward(self, x):
        if not self.enabled:
            return super().forward(x)
        limit = 2 ** (BITS_W - 1)
        scale = self.weight.detach().abs().amax((1, 2, 3)).clamp(min=1e-8) / (limit - 1)
        w = torch.fake_quantize_per_channel_affine(self.weight, scale, self.zero, 0, -limit, limit - 1)
        return F.conv2d(self.act(x), w, None, self.stride, self.padding)


class Basic(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.conv1, self.bn1 = QuantConv2d(i, o, 3, stride), nn.BatchNorm2d(o)
        self.conv2, self.bn2 = QuantConv2d(o, o, 3), nn.BatchNorm2d(o)
        self.down = (
            nn.Sequential(QuantConv2d(i, o, 1, stride), nn.BatchNorm2d(o)) if stride > 1 or i != o else nn.Identity()
        )

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.down(x))


class QResNet18(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(QuantConv2d(3, 64, 7, 2, True), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        plan = [
            (64, 64, 1),
            (64, 64, 1),
            (64, 128, 2),
            (128, 128, 1),
            (128, 256, 2),
            (256, 256, 1),
            (256, 512, 2),
            (512, 512, 1),
        ]
        self.layers = nn.Sequential(*(Basic(*p) for p in plan))
        self.fc = nn.Linear(512, 1000)

    def forward(self, x):
        return self.fc(self.layers(self.stem(x)).mean((2, 3)))


student = QResNet18().cuda()
teacher = copy.deepcopy(student).half().eval().requires_grad_(False)
for m in teacher.modules():
    m.enabled = False
net = torch.compile(student)
scales = [p for n, p in student.named_parameters() if n.endswith("scale")]
weights = [p for n, p in student.named_parameters() if not n.endswith("scale")]
opt = torch.optim.SGD(
    [{"params": weights, "weight_decay": 1e-4}, {"params": scales, "lr": 1e-3}], lr=0.01, momentum=0.9, nesterov=True
)
images = torch.randn(256, 3, 224, 224).pin_memory()
labels = torch.randint(0, 1000, (256,))
correct = seen = 0
for i in steps():
    rows = slice(i % 2 * 128, i % 2 * 128 + 128)
    x, y = images[rows].cuda(non_blocking=True), labels[rows].cuda()
    with torch.no_grad():
        soft = F.softmax(teacher(x.half()).float() / 4, -1)
    out = net(x)
    loss = F.cross_entropy(out, y) + 16 * F.kl_div(F.log_softmax(out / 4, -1), soft, reduction="batchmean")
    opt.zero_grad()
    loss.backward()
    opt.step()
    correct += (out.argmax(1) == y).sum().item()
    seen += len(y)
