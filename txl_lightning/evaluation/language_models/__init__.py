"""Language models from elsewhere, and the bytes that tokens of different tokenizers stand for."""
