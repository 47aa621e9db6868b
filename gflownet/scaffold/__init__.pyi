from .package import write_package as write_package
