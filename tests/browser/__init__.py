"""Pages in a real headless Chromium."""
