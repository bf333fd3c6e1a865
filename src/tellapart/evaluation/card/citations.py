"""Citations: the papers of methods and rewards, as BibTeX."""

from __future__ import annotations

from collections.abc import Sequence

_ENTRIES = {
    "vinyals2015": (
        "inproceedings",
        "Show and Tell: A Neural Image Caption Generator",
        "Vinyals, Oriol and Toshev, Alexander and Bengio, Samy and Erhan, Dumitru",
        "CVPR",
        2015,
    ),
    "rennie2017": (
        "inproceedings",
        "Self-critical Sequence Training for Image Captioning",
        "Rennie, Steven J. and Marcheret, Etienne and Mroueh, Youssef and Ross, Jerret and Goel, Vaibhava",
        "CVPR",
        2017,
    ),
    "moratelli2024": (
        "inproceedings",
        "Revisiting Image Captioning Training Paradigm via Direct CLIP-based Optimization",
        "Moratelli, Nicholas and Caffagni, Davide and Cornia, Marcella and Baraldi, Lorenzo and Cucchiara, Rita",
        "BMVC",
        2024,
    ),
    "chaffin2024": (
        "misc",
        "Distinctive Image Captioning: Leveraging Ground Truth Captions in CLIP Guided Reinforcement Learning",
        "Chaffin, Antoine and Kijak, Ewa and Claveau, Vincent",
        "",
        2024,
    ),
    "chen2020": (
        "inproceedings",
        "Better Captioning with Sequence-Level Exploration",
        "Chen, Jia and Jin, Qin",
        "CVPR",
        2020,
    ),
    "luo2018": (
        "inproceedings",
        "Discriminability Objective for Training Descriptive Captions",
        "Luo, Ruotian and Price, Brian and Cohen, Scott and Shakhnarovich, Gregory",
        "CVPR",
        2018,
    ),
    "liu2018": (
        "inproceedings",
        "Show, Tell and Discriminate: Image Captioning by Self-retrieval with Partially Labeled Data",
        "Liu, Xihui and Li, Hongsheng and Shao, Jing and Chen, Dapeng and Wang, Xiaogang",
        "ECCV",
        2018,
    ),
    "dai2017": (
        "inproceedings",
        "Towards Diverse and Natural Image Descriptions via a Conditional GAN",
        "Dai, Bo and Fidler, Sanja and Urtasun, Raquel and Lin, Dahua",
        "ICCV",
        2017,
    ),
    "jang2017": (
        "inproceedings",
        "Categorical Reparameterization with Gumbel-Softmax",
        "Jang, Eric and Gu, Shixiang and Poole, Ben",
        "ICLR",
        2017,
    ),
    "vered2019": (
        "inproceedings",
        "Joint Optimization for Cooperative Image Captioning",
        "Vered, Gilad and Oren, Gal and Atzmon, Yuval and Chechik, Gal",
        "ICCV",
        2019,
    ),
    "dzabraev2024": (
        "misc",
        "VLRM: Vision-Language Models act as Reward Models for Image Captioning",
        "Dzabraev, Maksim and Kunitsyn, Alexander and Ivaniuta, Andrei",
        "",
        2024,
    ),
    "cho2022": (
        "inproceedings",
        "Fine-grained Image Captioning with CLIP Reward",
        "Cho, Jaemin and Yoon, Seunghyun and Kale, Ajinkya and Dernoncourt, Franck and Bui, Trung and Bansal, Mohit",
        "Findings of NAACL",
        2022,
    ),
    "hessel2021": (
        "inproceedings",
        "CLIPScore: A Reference-free Evaluation Metric for Image Captioning",
        "Hessel, Jack and Holtzman, Ari and Forbes, Maxwell and Le Bras, Ronan and Choi, Yejin",
        "EMNLP",
        2021,
    ),
    "vedantam2015": (
        "inproceedings",
        "CIDEr: Consensus-based Image Description Evaluation",
        "Vedantam, Ramakrishna and Zitnick, C. Lawrence and Parikh, Devi",
        "CVPR",
        2015,
    ),
    "denkowski2014": (
        "inproceedings",
        "Meteor Universal: Language Specific Translation Evaluation for Any Target Language",
        "Denkowski, Michael and Lavie, Alon",
        "Workshop on Statistical Machine Translation",
        2014,
    ),
    "sarto2023": (
        "inproceedings",
        "Positive-Augmented Contrastive Learning for Image and Video Captioning Evaluation",
        "Sarto, Sara and Barraco, Manuele and Cornia, Marcella and Baraldi, Lorenzo and Cucchiara, Rita",
        "CVPR",
        2023,
    ),
    "rafailov2023": (
        "inproceedings",
        "Direct Preference Optimization: Your Language Model is Secretly a Reward Model",
        "Rafailov, Rafael and Sharma, Archit and Mitchell, Eric and Manning, Christopher D. and Ermon, Stefano and Finn, Chelsea",
        "NeurIPS",
        2023,
    ),
    "azar2024": (
        "inproceedings",
        "A General Theoretical Paradigm to Understand Learning from Human Preferences",
        "Azar, Mohammad Gheshlaghi and others",
        "AISTATS",
        2024,
    ),
    "ethayarajh2024": (
        "inproceedings",
        "KTO: Model Alignment as Prospect Theoretic Optimization",
        "Ethayarajh, Kawin and Xu, Winnie and Muennighoff, Niklas and Jurafsky, Dan and Kiela, Douwe",
        "ICML",
        2024,
    ),
    "ahmadian2024": (
        "inproceedings",
        "Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human Feedback in LLMs",
        "Ahmadian, Arash and others",
        "ACL",
        2024,
    ),
    "shao2024": (
        "misc",
        "DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models",
        "Shao, Zhihong and others",
        "",
        2024,
    ),
    "xing_caprl2025": (
        "misc",
        "CapRL: Stimulating Dense Image Caption Capabilities via Reinforcement Learning",
        "Xing, Long and Dong, Xiaoyi and Zang, Yuhang and Cao, Yuhang and Liang, Jianze and others",
        "",
        2025,
    ),
    "lin_vqascore2024": (
        "inproceedings",
        "Evaluating Text-to-Visual Generation with Image-to-Text Generation",
        "Lin, Zhiqiu and Pathak, Deepak and Li, Baiqi and Li, Jiayao and Xia, Xide and Neubig, Graham and Zhang, Pengchuan and "
        "Ramanan, Deva",
        "ECCV",
        2024,
    ),
    "ye_dcscore2025": (
        "inproceedings",
        "Painting with Words: Elevating Detailed Image Captioning with Benchmark and Alignment Learning",
        "Ye, Qinghao and Zeng, Xianhan and Li, Fu and Li, Chunyuan and Fan, Haoqi",
        "ICLR",
        2025,
    ),
}
"""Key -> kind, title, authors, venue, year."""

_REWARDS = {
    "clip_s": "hessel2021",
    "cider_d": "vedantam2015",
    "language_model": "dzabraev2024",
    "grammar": "cho2022",
    "meteor": "denkowski2014",
    "ref_clip_s": "hessel2021",
    "pac_s": "sarto2023",
    "ref_pac_s": "sarto2023",
    "question_answering": "xing_caprl2025",
    "vqa_score": "lin_vqascore2024",
    "claim_precision": "ye_dcscore2025",
    "claim_f1": "ye_dcscore2025",
}


def citations(paper: str, rewards: Sequence[str]) -> list[str]:
    """BibTeX of what a method's ``paper`` line names (``Moratelli et al. (2024)``) and of its rewards, each once."""
    named = [key for key in _ENTRIES if _named(key, paper)]
    return [_bibtex(key) for key in dict.fromkeys([*named, *(_REWARDS[name] for name in rewards if name in _REWARDS)])]


def _named(key: str, paper: str) -> bool:
    return key[:-4] in paper.lower() and key[-4:] in paper


def _bibtex(key: str) -> str:
    kind, title, authors, venue, year = _ENTRIES[key]
    lines = [f"  title = {{{{{title}}}}}", f"  author = {{{authors}}}"]
    lines += [f"  booktitle = {{{venue}}}"] if venue else []
    return f"@{kind}{{{key},\n" + ",\n".join([*lines, f"  year = {{{year}}}"]) + "\n}"
