"""Ask each worker behind a shared endpoint by itself."""
