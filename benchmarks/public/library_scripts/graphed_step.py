import torch

m = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)).cuda()
opt = torch.optim.Adam(m.parameters(), 0.001, capturable=True)
x, y = (torch.randn(64, 512, device="cuda"), torch.randn(64, 512, device="cuda"))
s = torch.cuda.Stream()
s.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(s):
    for _ in range(3):
        opt.zero_grad(set_to_none=True)
        torch.nn.functional.mse_loss(m(x), y).backward()
        opt.step()
torch.cuda.current_stream().wait_stream(s)
g = torch.cuda.CUDAGraph()
opt.zero_grad(set_to_none=True)
with torch.cuda.graph(g):
    out = m(x)
    loss = torch.nn.functional.mse_loss(out, y)
    loss.backward()
    opt.step()
for i in range(100):
    x.copy_(torch.randn(64, 512))
    y.copy_(torch.randn(64, 512))
    g.replay()
    if i % 10 == 0:
        print(loss.item())
