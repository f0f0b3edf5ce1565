"""Records: readers and stream of the view ``records``, and the identity of their segments."""
