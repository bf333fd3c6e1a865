"""A run's model card: ``README.md`` with the header that Hugging Face's hub reads."""

from tellapart.evaluation.card.page import CARD_FILE, card_text, is_ours, write_card

__all__ = ["CARD_FILE", "card_text", "is_ours", "write_card"]
