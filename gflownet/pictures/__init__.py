"""Pictures as SVG, for pages and files: figures of graphs in layers, and charts."""
