from .__main__ import write_package as write_package
