"""Pages of the reference, one module each: a function `page` that returns the Markdown."""
