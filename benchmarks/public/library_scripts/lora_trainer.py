import torch
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments, Trainer
from peft import LoraConfig, get_peft_model, TaskType

cfg = LlamaConfig(
    hidden_size=1024,
    intermediate_size=2816,
    num_hidden_layers=8,
    num_attention_heads=16,
    num_key_value_heads=4,
    vocab_size=32000,
)
model = LlamaForCausalLM(cfg).to(torch.bfloat16)
model = get_peft_model(
    model,
    LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        r=16,
        lora_alpha=32,
        lora_dropout=0.05,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
    ),
)
model.print_trainable_parameters()


class D(torch.utils.data.Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, i):
        t = torch.randint(0, 32000, (512,))
        return {"input_ids": t, "labels": t.clone(), "attention_mask": torch.ones_like(t)}


Trainer(
    model=model,
    args=TrainingArguments(
        output_dir="out",
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        bf16=True,
        max_steps=20,
        logging_steps=5,
        report_to=[],
        gradient_checkpointing=True,
    ),
    train_dataset=D(),
).train()
