"""Shipped model shapes (YAML), layer kinds, shapes of draft heads, and the reader of Hugging Face configs."""
