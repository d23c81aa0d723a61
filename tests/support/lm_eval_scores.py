"""A script that prints what lm-eval makes of a model: by transformers, and by a server of it.

Usage: ``lm_eval_scores.py MODEL_DIRECTORY SERVER_URL EMPTY_DIRECTORY``. The last line is JSON: of
each run the answers to each document, and the scores.
"""

import json
import random
import sys
import tomllib
from pathlib import Path

import lm_eval

CORPUS = Path(__file__).parents[2] / "tools/demo_model/faq"
# Characters of several tokens, and spaces and line ends where texts are cut.
ODD = ["naïve café, 東京 🙂", " two  spaces", "a line\nand a tab\there", "👩‍👩‍👧‍👦 e\u0301 สวัสดี"]


def write_documents(directory):
    topics = [
        topic
        for file in sorted(CORPUS.glob("*.toml"))
        for topic in tomllib.loads(file.read_text())["topic"]
    ]
    chosen, draw = topics[:: len(topics) // 9], random.Random(4)
    rows = []
    for topic in chosen:
        answers = [topic["answer"], draw.choice(topics)["answer"], draw.choice(ODD)]
        draw.shuffle(answers)
        row = {"question": topic["held"], "answer": topic["answer"], "choices": answers}
        rows.append(json.dumps(row | {"target": answers.index(topic["answer"])}))
    files = {"validation": directory / "shots.jsonl", "test": directory / "test.jsonl"}
    files["validation"].write_text("\n".join(rows[:2]))
    files["test"].write_text("\n".join(rows[2:]))
    return {split: str(file) for split, file in files.items()}


def tasks(files):
    common = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": files},
        "test_split": "test",
        "fewshot_split": "validation",
        "fewshot_config": {"sampler": "first_n"},
        "num_fewshot": 2,
        "doc_to_text": "Question: {{question}}\nAnswer:",
    }
    choice = {
        "task": "choice",
        "output_type": "multiple_choice",
        "doc_to_choice": "choices",
        "doc_to_target": "target",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    }
    text = {
        "task": "text",
        "output_type": "generate_until",
        "doc_to_target": "answer",
        "generation_kwargs": {
            "until": ["\n", ". ", " the new", "Question:", ", then", " 🙂"],
            "max_gen_toks": 40,
        },
        "metric_list": [{"metric": "exact_match"}, {"metric": "bleu"}],
    }
    rolling = {
        "task": "rolling",
        "output_type": "loglikelihood_rolling",
        "num_fewshot": 0,
        "doc_to_text": "",
        "doc_to_target": "{{choices | join(' ')}}",
        "metric_list": [{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}],
    }
    # Of more stop strings, lm-eval sends four to chat.
    brief = text | {
        "task": "brief",
        "generation_kwargs": {"until": [". ", "?"], "max_gen_toks": 40},
    }
    return [common | each for each in (choice, text, brief, rolling)]


def main(model, url, directory):
    choice, text, brief, rolling = tasks(write_documents(Path(directory)))

    def run(kind, arguments, *chosen, **options):
        found = lm_eval.simple_evaluate(
            model=kind,
            model_args=arguments,
            tasks=[dict(task) for task in chosen],
            bootstrap_iters=0,
            batch_size=1,
            **options,
        )
        return {
            name: {
                "answers": [sample["filtered_resps"] for sample in samples],
                "scores": {
                    metric: float(score)
                    for metric, score in found["results"][name].items()
                    if metric.endswith(",none") and "stderr" not in metric
                },
            }
            for name, samples in found["samples"].items()
        }

    chat = {"apply_chat_template": True, "fewshot_as_multiturn": True}
    hf = f"pretrained={model},dtype=float32,max_length=2048"
    api = f"model=demo,base_url={url}/v1/completions,tokenizer={model},max_length=2048"
    chats = f"model=demo,base_url={url}/v1/chat/completions,eos_string=<|end|>"
    runs = {
        "expected": run("hf", hf, choice, text, rolling, device="cpu"),
        "tokens": run("local-completions", api, choice, text, rolling),
        "texts": run(
            "local-completions",
            f"{api},tokenized_requests=False,num_concurrent=4",
            *(choice, text, rolling),
        ),
        "expected chat": run("hf", hf, choice, brief, device="cpu", **chat),
        "chat of tokens": run("local-completions", api, choice, brief, **chat),
        "chat": run("local-chat-completions", chats, brief, **chat),
    }
    print(json.dumps(runs))


if __name__ == "__main__":
    main(*sys.argv[1:])
