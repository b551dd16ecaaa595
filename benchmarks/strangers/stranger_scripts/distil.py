import torch, torch.nn.functional as F
from transformers import BertConfig, BertForSequenceClassification
from tick import steps

teacher = BertForSequenceClassification(BertConfig(num_hidden_layers=8, num_labels=20)).to(torch.bfloat16).cuda().eval()
student = BertForSequenceClassification(BertConfig(num_hidden_layers=3, num_labels=20)).cuda().train()
tc, sc = torch.compile(teacher, dynamic=True), torch.compile(student, dynamic=True)
opt = torch.optim.AdamW(student.parameters(), 2e-5)
LENS = [64, 128, 192, 128]
for i in steps():
    n = LENS[i % 4]
    ids, mask = torch.randint(0, 30000, (64, n), device="cuda"), torch.ones(64, n, dtype=torch.long, device="cuda")
    with torch.no_grad():
        tl = tc(input_ids=ids, attention_mask=mask).logits.float()
    with torch.autocast("cuda", torch.bfloat16):
        sl = sc(input_ids=ids, attention_mask=mask).logits
    loss = F.kl_div(F.log_softmax(sl.float() / 2, -1), F.softmax(tl / 2, -1), reduction="batchmean") * 4
    loss.backward()
    opt.step()
    opt.zero_grad(set_to_none=True)
