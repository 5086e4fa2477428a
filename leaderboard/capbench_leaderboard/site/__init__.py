"""The static site: pages, tables and charts as HTML, and a server to preview them."""
