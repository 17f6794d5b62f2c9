#pragma once
enum { INNERMOST = 1 };
