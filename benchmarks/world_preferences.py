"""Preferences on the built-in world, for the methods on given pairs: of five beams of a captioner the truest against the falsest.

    python benchmarks/world_preferences.py preferences.jsonl [--captioner world/xe] [--images 1500] [--size full]

The exact truth decides (the reward ``oracle``), as a careful rater would. Images whose beams are equally true have no pair.
"""

import argparse
import json
from pathlib import Path

import tellapart
from tellapart.types import Decoding
from tellapart.world import load_scenes, load_world
from tellapart.world.oracle import Oracle

AT_ONCE = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--captioner", default="world/xe")
    parser.add_argument("--images", type=int, default=1500)
    parser.add_argument("--size", default="full")
    chosen = parser.parse_args()
    captioner = tellapart.load_captioner(chosen.captioner, size=chosen.size)
    dataset = load_world("train", size=chosen.size)[: chosen.images]
    oracle, collate = (
        Oracle(load_scenes("train", size=chosen.size)),
        tellapart.Collate({captioner.name: captioner.process}),
    )
    rows = []
    for start in range(0, len(dataset), AT_ONCE):
        batch = collate(dataset[start : start + AT_ONCE].examples)
        rollout = captioner.generate(batch, Decoding(num_beams=5, num_return_sequences=5, max_new_tokens=38))
        values = oracle(rollout).view(len(batch), -1)
        for image, (image_id, own) in enumerate(zip(batch.ids, values, strict=True)):
            best, worst = int(own.argmax()), int(own.argmin())
            if own[best] > own[worst]:
                texts = rollout.texts[5 * image : 5 * image + 5]
                rows.append({"image_id": image_id, "chosen": texts[best], "rejected": texts[worst]})
    chosen.path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(f"{len(rows)} pairs of {len(dataset)} images")


if __name__ == "__main__":
    main()
