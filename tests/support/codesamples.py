"""Libraries with device code: containers that NVIDIA's own tool wrote, and ones made here to be right or wrong."""

from __future__ import annotations

import base64
import lzma
import struct
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from nvllm.kernels.fatbin import Code

SAMPLE = lzma.decompress(
    base64.b85decode(
        "{Wp48S^xk9=GL@E0stWa8~^|S5YJf5;C$Bx^<4lcJ4UNtAU)@jofL>ae>tKe`1T_;cvh+Z=#jg<)I$+mAJWE@iPy20DOc^-#66SK"
        "w97*Qx~u*tP`9j#NZS|tNf$h>PYW#0tYibsP!9)P@WvU+<Aez#wLa;DStaH841)9ZL0#%-qf|+kVl46C>?)GoQtZ&mn#d`5!0ztW"
        "{CZkVyMmOteO(cX*0j(xi^I+nvD1b96Cc@Z0YNhH=?WYX5_>i#K+Ptrp-Q?}+9l*{5pTa`xui=B8PeDli$su921IMQxM&D;0w*v`"
        "Y?2Of#n}KHZdMzH+;8_=?TlsfGoHiBe?@YQDEbud5Z^1){LrIcr-l-%@ImkrIKxAI4wy}w;>XJDn4tLuDoK6rkF_)*sY1A&L{YuY"
        "v;#7_r^d>VaQ^o@*e^Y_IxK)fPpUJ@5JgTZ;BEd#s_DcT=U?7XIm}qFO*Q9!*t3_}_tBP1(z+{Np~k`9)5`hYC@aiUh-6~|Nfu}o"
        "PC83dk<Aq!hY$~|Oa>i5bO@EoIoLYR4p_XltldRxauP5H70<J<sN4yZX%JjL4sqZc>5Uakx})8)DC;r7g+r7?slOW#f|!(ND}wg3"
        "jq6}M<kLopLRTy>Wv)~5p=X=_t;X4KFsHPYMHj|ab}{<olA{EEyxR)up!~X>;jlemz;mshEp>>YMK(1r=}bqHNrR5<ySQBWT<IK5"
        "Uy~!4P%uW{`Yz9P2)OdT50jXMgGmf<`a!sSN54u_)p-A*p<z5yvv_P<!ObLW(~`?<#z(mDIYn58Y%R?$OL}JHaLpJ+Ye4YxasU3X"
        "!JL05m<w|=(fd*3saNzo7{jlZI4iybHQ=q4SuG0{ZA0XaP<P#CM-2`cIu=K0iokPv9td-EEyRo=fTz?5u<dc!C+4OZMpg9FZx->&"
        "mf6w-`yoI}Ut7VqDqBaeDfy;!2Hm++7zIhURhVU<OD$YGTY0!wpRD*<tO-a^jFl9-R)N0o7*d&2gRiIA45&L1>`CzBmE|GJB=TX!"
        "b7C1ZUd6*tA$LI0)=d9Kk#ItBY--^GO&e!GsL}?|gxDis@M<KTnwbf9f;OXNSC@FNp6bIYK~%}D8|*3q&jF}k4^i=tIzK5Gg;+5F"
        "0y0ePDEDU5Do8i|8UAJkkv6XtM1s~UaGHdZh&`xN*xY$UV%T`sF8Scim~ZV00ifMXo+x;)Q{E!vyIYlqHTd97JhQLAxu<?0p{(Qr"
        "^G3aSH6H%2h#O3Rr6x06IzlbL>Ko0UM-Iw0qB?{W^y(@wPkt1h5<jDF<zng?Gl~D5;0Ic3)v<05lBHrB*{6B9@qyM|1Cf$5=ff^}"
        "K5N#?((mKJ;%ZkLffvo*k&MKX+SJzqKJ?+JlCD2pQDe^-@cu&>pW79~+)CK0@?Ve~vupeIXw3GmeO-}@+L`5Ii&w+l89IG*CLdEh"
        "Ui-y9kxuVcF065DUJQ>lP%=V8g;gU6BSke9w%|(a8@ZSkGg-3tk^~41tY<waNrR|oGK-c*LYO|C#^~&+Wuj#>9*M(UbE0Et{-^M#"
        ">OaCJ^QIkus+1MKFzAi$+Z)p!doXXI8z<>@KkC^eL_uBMdeee3v9Mo>m>i#ov|^Hw-bEdx%e(VmitDb90kU?eoi&|dc$eO6_GGEz"
        "<P=wCWq!}Yz8_<uLk<V7Y5ygx8S>VIBbb&4ZTw=2=1!7@4T0oQ(Z<j$VQhOp7(9#b%G1Qm{72=GOi^v@RmHEf94!ur20V<HW(M0#"
        "cE8CdDcEc(o9Ls-CrVXlb5|E816U{-`kjIyRr<MipU}F^t8?3Q`bc;1lb{*t{|0J2S*z(!=if{tlxr!}IJ3-C^|(-BZN*_0N7w*S"
        "*AUEO=mp9PlHza4*<?x3P=cH-LPHi8kS@wZfmM%;wV=5qv#mWiRND+NUoP>>gRx>Fn>tZmPsIuTxoYvYRdPYu^4#3rAq#^w5&S|3"
        "uhM;1f=3WO+&eO?7Z)N-=|RBS>R36Y|6z+mLChi;BUiM8-Y~wczf{Vr)63b{Ll)xDyf%49G|%a(b+rKuoYuOx3Q>`enYN9F;*(Do"
        "8~x_FBeM5^Za3fp%yy8ECk<kKQU~BaARJ`q#+ne#2*rdeZt;2a(BviEpf;AeS^vqTS<POgTjn%w*Ji~&*<AEBYmgr8!*#qPHN7yy"
        "3N<)bH@nSte!u?}J>!of-AJ8HJ&Fi>Vk>vUMf*+`AtR9$Rf_cqOXl5NqaLUVLI`u^3m2L4@0E2RAa5EVvtblVQ47}I!NSb}7VxT4"
        "T7~@U*ZVb?Tmz(v1YzMS%9ItPHjGQAJl2Vh?A+c;!ru~QUyXm%O{hX}%1c-<%#L&b00000v^2O>RA>IT00EH>*!ckfGDorMvBYQl"
        "0ssI200dcD"
    )
)
"""One empty kernel of our own, compiled with ptxas and packed with fatbinary, both of CUDA 13.5."""

SAMPLE_CODE = (
    Code("cubin", "sm_80"),
    Code("cubin", "sm_90a"),
    Code("cubin", "sm_120"),
    Code("cubin", "sm_120a"),
    Code("cubin", "sm_120f"),
    Code("cubin", "sm_121a"),
    Code("ptx", "sm_80"),
    Code("ptx", "sm_120a"),
    Code("ptx", "sm_120f"),
    Code("cubin", "sm_100f"),
)
"""What `cuobjdump` of CUDA 13.5 lists for it, in its order."""

_FLAGS = {"a": 0x100000, "f": 0x200000}


def code(text: str) -> Code:
    """Return the code that TEXT names, such as ``cubin sm_120a``."""
    kind, _, architecture = text.partition(" ")
    return Code("ptx" if kind == "ptx" else "cubin", architecture)


def container(codes: Sequence[Code], kind: int | None = None) -> bytes:
    """Return a container with CODES, each of one word of zeros; of KIND if that is given."""
    entries = b""
    for one in codes:
        suffix = one.architecture[-1] if one.architecture[-1] in _FLAGS else ""
        number = int(one.architecture.removeprefix("sm_").removesuffix(suffix))
        said = kind if kind is not None else 1 if one.kind == "ptx" else 2
        entries += struct.pack("<HHIQIIIIQQQQ", said, 0x101, 64, 8, 0, 0, 0, number, 0, _FLAGS.get(suffix, 0), 0, 0)
        entries += bytes(8)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entries)) + entries


def library(*containers: bytes, section: str = ".nv_fatbin") -> bytes:
    """Return an ELF file whose SECTION holds CONTAINERS, with the linker's gap after each."""
    content = b"".join(one + bytes(8) for one in containers)
    names = b"\0" + section.encode() + b"\0.shstrtab\0"
    start = 64
    headers = start + len(content) + len(names)
    rows = [
        struct.pack("<IIQQQQIIQQ", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
        struct.pack("<IIQQQQIIQQ", 1, 1, 0, 0, start, len(content), 0, 0, 8, 0),
        struct.pack("<IIQQQQIIQQ", len(section) + 2, 3, 0, 0, start + len(content), len(names), 0, 0, 1, 0),
    ]
    head = b"\x7fELF\x02\x01\x01" + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, headers, 0, 64, 0, 0, 64, len(rows), 2)
    return head + content + names + b"".join(rows)


def wheel(directory: Path, files: Mapping[str, bytes]) -> Path:
    """Write a wheel with FILES into DIRECTORY and return its path."""
    path = directory / "code-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    return path
