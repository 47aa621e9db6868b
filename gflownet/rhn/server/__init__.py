"""A saved language model behind OpenAI's completions API."""
