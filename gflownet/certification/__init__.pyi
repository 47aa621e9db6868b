from .certify import certify as certify
from .result import Certified as Certified
from .result import RunCertificate as RunCertificate
from .store import CertificateStore as CertificateStore
from .subject import Subject as Subject
