"""What ``tellapart data check`` found, as a page of pictures."""
