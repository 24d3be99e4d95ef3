"""The BFCL starter policy: its tokenizer, its renderer, its warm start, and the packaged weights in `bfcl/`."""
